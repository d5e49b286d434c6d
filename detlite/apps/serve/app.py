"""The service: a page, and what the page and other programs ask it for."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from detlite.data.errors import DataError, TooLargeError
from detlite.inference.images import LoadedImage
from detlite.inference.predictor import Prediction, Predictor

from .batching import Batcher
from .limits import MEDIA_TYPES, Limits, body_of, refusal_of, threshold_of
from .metrics import Metrics
from .responses import Refusal, detections_json

logger = logging.getLogger(__name__)

# The page needs nothing but itself and this server, and nothing else is let in.
_PAGE_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'"
)


class Service:
    """The answers. /predict takes a picture's file as the body, and ?threshold=.

    Args:
        predictor: with masks as RLEs, and `score_thresh` and `max_pixels` as in `limits`.
        limits: what is taken.
    """

    def __init__(self, predictor: Predictor, limits: Limits) -> None:
        self.predictor = predictor
        self.limits = limits
        self.metrics = Metrics()
        self.batcher = Batcher(predictor, limits.batch, self.metrics.batch)
        self.in_progress = 0
        self._running: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Batches are made while the server runs."""
        self._running = asyncio.create_task(self.batcher.run())
        yield
        self._running.cancel()
        with suppress(asyncio.CancelledError):
            await self._running
        self.batcher.close()

    async def page(self, request: Request) -> Response:
        """The page for people."""
        html = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
        return HTMLResponse(html, headers={"Content-Security-Policy": _PAGE_POLICY})

    async def model(self, request: Request) -> Response:
        """What is detected, and what is taken."""
        return JSONResponse(
            {
                "categories": [
                    {"id": category["id"], "name": category["name"]}
                    for category in self.predictor.categories
                ],
                "exif_orientation": self.predictor.model.convention.exif_orientation,
                "limits": asdict(self.limits),
                "media_types": MEDIA_TYPES,
            }
        )

    async def health(self, request: Request) -> Response:
        """200 while batches are made."""
        alive = self._running is not None and not self._running.done()
        content = {"status": "ok" if alive else "stopped", "requests": self.in_progress}
        return JSONResponse(content, 200 if alive else 503)

    async def metrics_text(self, request: Request) -> Response:
        """Prometheus' text format."""
        return Response(self.metrics.text(), media_type=self.metrics.media_type)

    async def predict(self, request: Request) -> Response:
        """The detections in a picture, as json."""
        start = time.perf_counter()
        try:
            content = await self._answer(request, start + self.limits.seconds)
        except Refusal as refusal:
            self.metrics.requests.labels(refusal.status).inc()
            raise
        except ClientDisconnect:
            self.metrics.requests.labels("gone").inc()
            return Response(status_code=499)  # which nobody reads
        self.metrics.requests.labels(200).inc()
        self.metrics.seconds.observe(time.perf_counter() - start)
        return Response(content, media_type="application/json")

    async def _answer(self, request: Request, deadline: float) -> bytes:
        refusal = refusal_of(request, self.limits, self.in_progress)
        counted = refusal is None
        self.in_progress += counted
        self.metrics.in_progress.set(self.in_progress)
        try:
            body = await body_of(request, self.limits, counted, deadline)
            if refusal is not None:
                raise refusal
            return await self._detect(body, threshold_of(request, self.limits), deadline)
        finally:
            self.in_progress -= counted
            self.metrics.in_progress.set(self.in_progress)

    async def _detect(self, body: bytes, threshold: float, deadline: float) -> bytes:
        center = self.predictor.model.convention.keypoint_center

        def then(loaded: LoadedImage, found: Prediction) -> tuple[bytes, int]:
            return detections_json(loaded, found, threshold, center)

        try:
            left = deadline - time.perf_counter()
            content, count = await asyncio.wait_for(self.batcher.predict(body, then), left)
        except asyncio.TimeoutError:
            raise Refusal(
                504,
                f"there was no answer within {self.limits.seconds:g} seconds",
                "send it again when fewer wait (see /metrics), or raise --seconds of the server",
            ) from None
        except TooLargeError:
            raise Refusal(
                413,
                f"the picture has more than {self.limits.pixels} pixels",
                "send a smaller picture, or raise --max-pixels of the server",
            ) from None
        except DataError as error:
            raise Refusal(
                422,
                f"the picture cannot be read: {str(error).removeprefix('bytes: ')}",
                "send a sound picture: open it with a viewer and save it again",
            ) from None
        except Exception:
            logger.exception("a batch failed")
            raise Refusal(
                500, "the model failed", "see the server's log; send the picture again"
            ) from None
        self.metrics.detections.inc(count)
        return content


def build_app(predictor: Predictor, limits: Limits) -> Starlette:
    """The service as an ASGI application, see `Service`."""
    service = Service(predictor, limits)
    return Starlette(
        routes=[
            Route("/", service.page),
            Route("/predict", service.predict, methods=["POST"]),
            Route("/model", service.model),
            Route("/health", service.health),
            Route("/metrics", service.metrics_text),
        ],
        exception_handlers={Refusal: _refuse, HTTPException: _no_such_thing},
        lifespan=service.lifespan,
    )


async def _refuse(request: Request, error: Any) -> Response:
    headers = {"Retry-After": "1"} if error.status == 503 else None
    return JSONResponse(error.content(), error.status, headers)


async def _no_such_thing(request: Request, error: Any) -> Response:
    ways = "POST a picture to /predict, or GET /, /model, /health or /metrics"
    problem = f"{request.method} {request.url.path}: {error.detail}"
    refusal = Refusal(error.status_code, problem, ways)
    return JSONResponse(refusal.content(), error.status_code, error.headers)
