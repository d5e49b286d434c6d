"""The ASGI application: a web page, predictions, and information about the model and the server."""

import asyncio
import json
import logging
import math
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict
from functools import partial
from importlib.resources import files

import prometheus_client as prometheus
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from detlite.apps.batch_predict.allocator import release_freed_memory
from detlite.apps.batch_predict.predict_images import coco_objects
from detlite.data.images.formats import open_image
from detlite.data.images.sources import ImageBytes
from detlite.files.errors import DataError, TooLargeError
from detlite.inference.prediction import LoadedImage
from detlite.inference.predictor import Prediction, Predictor

from .batching import Batcher
from .limits import (
    MEDIA_TYPES,
    Limits,
    Refusal,
    check_header,
    check_places,
    error_response,
    extract_file,
    read_body,
)
from .uploads import Uploads

logger = logging.getLogger(__name__)

# The page may only load from this server.
_PAGE_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'"
)
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """Prometheus metrics of one server and of its process (memory, CPU time, open files)."""

    def __init__(self) -> None:
        self.registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=self.registry)
        counter = partial(prometheus.Counter, registry=self.registry)
        histogram = partial(prometheus.Histogram, registry=self.registry)
        self.requests = counter("detlite_requests", "Responses of /predict", ["status"])
        self.seconds = histogram(
            "detlite_request_seconds",
            "Time from the header of a request to its response, for status 200",
            buckets=_SECONDS,
        )
        self.in_progress = prometheus.Gauge(
            "detlite_requests_in_progress", "Requests waiting or running", registry=self.registry
        )
        self.batch_size = histogram(
            "detlite_batch_images", "Images in a batch", buckets=(1, 2, 4, 8, 16, 32, 64)
        )
        self.batch_seconds = histogram(
            "detlite_batch_seconds", "Time of the network for a batch", buckets=_SECONDS
        )
        self.detections = counter("detlite_detections", "Detections in responses")

    def observe_batch(self, images: int, seconds: float) -> None:
        """Record a batch."""
        self.batch_size.observe(images)
        self.batch_seconds.observe(seconds)


class Service:
    """Request handlers. /predict expects an image file as the body and ?threshold= in the query.

    Args:
        predictor: returns masks as RLEs, and has the `max_pixels` of `limits` and their
            `lowest_threshold` as `score_thresh`.
        limits: limits of requests.
    """

    def __init__(self, predictor: Predictor, limits: Limits) -> None:
        self.predictor = predictor
        self.limits = limits
        self.metrics = Metrics()
        self.batcher = Batcher(predictor, limits.batch, self.metrics.observe_batch)
        self.in_progress = 0
        self._uploads = Uploads(limits.requests)
        self.pixels = 0  # of images that wait or run
        self._max_pixels = 0  # maximum of `pixels` since memory was returned to the system
        self._running: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Run the batcher while the server runs."""
        self._running = asyncio.create_task(self.batcher.run())
        yield
        self._running.cancel()
        with suppress(asyncio.CancelledError):
            await self._running
        self.batcher.close()

    async def page(self, request: Request) -> Response:
        """Return the web page."""
        html = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
        return HTMLResponse(html, headers={"Content-Security-Policy": _PAGE_POLICY})

    async def model(self, request: Request) -> Response:
        """Return the categories of the model and the limits of requests."""
        content = {
            "categories": [{"id": x["id"], "name": x["name"]} for x in self.predictor.categories],
            "channels": self.predictor.model.channels,
            "exif_orientation": self.predictor.model.convention.exif_orientation,
            "limits": asdict(self.limits) | {"lowest_threshold": self.limits.lowest_threshold},
            "media_types": MEDIA_TYPES,
        }
        return JSONResponse(content)

    async def health(self, request: Request) -> Response:
        """Return status 200 while the batcher runs, otherwise 503."""
        alive = self._running is not None and not self._running.done()
        content = {"status": "ok" if alive else "stopped", "requests": self.in_progress}
        return JSONResponse(content, 200 if alive else 503)

    async def metrics_text(self, request: Request) -> Response:
        """Return the metrics in the text format of Prometheus."""
        text = prometheus.generate_latest(self.metrics.registry)
        return Response(text, media_type=prometheus.CONTENT_TYPE_LATEST)

    async def predict(self, request: Request) -> Response:
        """Return the detections of an image as JSON."""
        start = time.perf_counter()
        try:
            content = await self._respond(request, start)
        except Refusal as refusal:
            self.metrics.requests.labels(refusal.status_code).inc()
            raise
        except ClientDisconnect:
            self.metrics.requests.labels("gone").inc()
            return Response(status_code=499)  # not sent, because the client is gone
        self.metrics.requests.labels(200).inc()
        self.metrics.seconds.observe(time.perf_counter() - start)
        return Response(content, media_type="application/json")

    async def _respond(self, request: Request, start: float) -> bytes:
        deadline = start + self.limits.seconds
        try:
            threshold = check_header(request, self.limits)
            check_places(self.limits, self.in_progress)
        except Refusal:
            await read_body(request, self.limits, start, discard=True)
            raise
        client = request.client.host if request.client else ""
        body = await self._uploads.receive(client, read_body(request, self.limits, start))
        check_places(self.limits, self.in_progress)
        self._count(1)
        try:
            body = await extract_file(request, body, self.limits)
            pixels = await asyncio.to_thread(_pixels_in_header, body, self.limits)
            with self._reserve_memory(pixels):
                return await self._detect(body, threshold, deadline)
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        self.in_progress += change
        self.metrics.in_progress.set(self.in_progress)

    @contextmanager
    def _reserve_memory(self, pixels: int) -> Iterator[None]:
        """Reserve memory for an image. Raises Refusal if other images need too much memory."""
        if self.pixels and self.pixels + pixels > self.limits.total_pixels:
            raise Refusal(503, f"images with {self.pixels} pixels are waiting or running already")
        self.pixels += pixels
        self._max_pixels = max(self._max_pixels, self.pixels)
        try:
            yield
        finally:
            self.pixels -= pixels
            if not self.pixels and self._max_pixels > self.limits.total_pixels / 2:
                self._max_pixels = 0
                asyncio.get_running_loop().call_later(1, release_freed_memory)

    async def _detect(self, body: bytes, threshold: float, deadline: float) -> bytes:
        center = self.predictor.model.convention.keypoint_center
        convert = partial(detections_json, threshold=threshold, keypoint_center=center)
        try:
            remaining = deadline - time.perf_counter()
            content, count = await asyncio.wait_for(self.batcher.predict(body, convert), remaining)
        except asyncio.TimeoutError:
            problem = f"there was no result within {self.limits.seconds:g} seconds"
            raise Refusal(504, problem) from None
        except TooLargeError:
            problem = f"the image has more than {self.limits.pixels} pixels"
            raise Refusal(413, problem) from None
        except DataError as error:
            raise Refusal(
                422,
                f"the image cannot be read: {str(error).removeprefix('bytes: ')}",
                "send a valid image with the channels of the model (see /model)",
            ) from None
        except Exception:
            logger.exception("a batch failed")
            raise Refusal(500, "the model failed") from None
        self.metrics.detections.inc(count)
        return content


def _pixels_in_header(body: bytes, limits: Limits) -> int:
    """Return the number of pixels of an image file; 0 if it is invalid (`load` reports it)."""
    try:
        with open_image(ImageBytes(body), limits.pixels) as image:
            return math.prod(image.size)
    except Exception:  # Pillow raises many types
        return 0


def detections_json(
    loaded: LoadedImage, prediction: Prediction, threshold: float, keypoint_center: float
) -> tuple[bytes, int]:
    """Return the JSON response for an image, and the number of detections in it.

    The masks of `prediction` must be COCO RLEs.
    """
    height, width = loaded.size
    count = int((prediction["scores"] >= threshold).sum())  # scores are in decreasing order
    detections = []
    objects = coco_objects(0, prediction, keypoint_center, count)
    for name, row in zip(prediction["names"], objects, strict=False):
        del row["image_id"]
        detections.append({"category": name, **row})
    content = {"width": width, "height": height, "detections": detections}
    return json.dumps(content, allow_nan=False).encode(), count


def build_app(predictor: Predictor, limits: Limits, origins: Sequence[str] = ()) -> Starlette:
    """Build the ASGI application. Web pages of `origins` may send requests (CORS)."""
    service = Service(predictor, limits)
    cors = Middleware(
        CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"]
    )
    return Starlette(
        routes=[
            Route("/", service.page),
            Route("/predict", service.predict, methods=["POST"]),
            Route("/model", service.model),
            Route("/health", service.health),
            Route("/metrics", service.metrics_text),
        ],
        exception_handlers={HTTPException: error_response},
        middleware=[cors] if origins else [],
        lifespan=service.lifespan,
    )
