"""The ASGI application: a web page, predictions, and information about the model and the server."""

import asyncio
import json
import time
from dataclasses import asdict
from functools import partial
from importlib.resources import files

from prometheus_client import CONTENT_TYPE_LATEST, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from detlite.apps.batch_predict.predict_images import coco_objects
from detlite.inference.prediction import LoadedImage
from detlite.inference.predictor import Prediction, Predictor

from . import requests
from .batching import SECONDS, Batcher
from .requests import Limits, Refusal

# The page may only load from this server.
_PAGE_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'"
)
REQUESTS = Counter("detlite_requests", "Responses of /predict", ["status"])
REQUEST_SECONDS = Histogram(
    "detlite_request_seconds", "Time to the response, for status 200", buckets=SECONDS
)
IN_PROGRESS = Gauge("detlite_requests_in_progress", "Requests waiting or running")
DETECTIONS = Counter("detlite_detections", "Detections in responses")


class Service:
    """Request handlers. /predict expects an image file as the body and ?threshold= in the query.

    Args:
        predictor: returns masks as RLEs, and has the `max_pixels` of `limits` and their
            `lowest_threshold` as `score_thresh`.
        limits: which requests are answered.
    """

    def __init__(self, predictor: Predictor, limits: Limits) -> None:
        self.predictor, self.limits = predictor, limits
        self.batcher = Batcher(predictor, limits.batch)
        self.in_progress = 0  # requests with a complete body
        IN_PROGRESS.set_function(lambda: self.in_progress)
        self.arriving = 0  # bytes of bodies that are not complete

    async def page(self, request: Request) -> Response:
        """Return the web page."""
        requests.check_origin(request, self.limits)
        html = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
        return HTMLResponse(html, headers={"Content-Security-Policy": _PAGE_POLICY})

    async def model(self, request: Request) -> Response:
        """Return the categories of the model and the limits of requests."""
        requests.check_origin(request, self.limits)
        content = {
            "categories": [{"id": x["id"], "name": x["name"]} for x in self.predictor.categories],
            "channels": self.predictor.model.channels,
            "exif_orientation": self.predictor.model.convention.exif_orientation,
            "limits": asdict(self.limits) | {"lowest_threshold": self.limits.lowest_threshold},
            "media_types": requests.MEDIA_TYPES,
        }
        return JSONResponse(content)

    async def health(self, request: Request) -> Response:
        """Return status 200 while the batcher runs, otherwise 503."""
        requests.check_origin(request, self.limits)
        alive = self.batcher.is_running
        content = {"status": "ok" if alive else "stopped", "requests": self.in_progress}
        return JSONResponse(content, 200 if alive else 503)

    async def metrics(self, request: Request) -> Response:
        """Return the metrics of this process in the text format of Prometheus."""
        requests.check_origin(request, self.limits)
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    async def predict(self, request: Request) -> Response:
        """Return the detections of an image as JSON."""
        start = time.perf_counter()
        try:
            content = await asyncio.wait_for(self._detect(request), self.limits.seconds)
        except ClientDisconnect:
            REQUESTS.labels("gone").inc()
            return Response(status_code=499)  # not sent, because the client is gone
        except Exception as error:
            refusal = requests.refusal_of(error, self.limits)
            REQUESTS.labels(refusal.status_code).inc()
            raise refusal from None
        REQUESTS.labels(200).inc()
        REQUEST_SECONDS.observe(time.perf_counter() - start)
        return Response(content, media_type="application/json")

    async def _detect(self, request: Request) -> bytes:
        body = await self._read_body(request)
        requests.check_origin(request, self.limits)
        threshold = requests.check_header(request, self.limits)
        if self.in_progress >= self.limits.requests:
            raise Refusal(503, f"{self.in_progress} requests are waiting or running already")
        self.in_progress += 1
        try:
            file = await requests.extract_file(request, body, self.limits)
            center = self.predictor.model.convention.keypoint_center
            convert = partial(detections_json, threshold=threshold, keypoint_center=center)
            content, count = await self.batcher.predict(file, convert)
        finally:
            self.in_progress -= 1
        DETECTIONS.inc(count)
        return content

    async def _read_body(self, request: Request) -> bytes:
        """Return the body.

        What is too much is read but not kept, because most clients read a response only after they
        have sent everything.

        Raises:
            Refusal: the body is too long or too late, or others take all memory.
            ClientDisconnect: the client has closed the connection.
        """
        limits, body, length = self.limits, bytearray(), 0

        async def read() -> None:
            nonlocal length
            async for chunk in request.stream():
                length += len(chunk)
                if length > 4 * limits.bytes:
                    return
                if length <= limits.bytes and self.arriving <= limits.requests * limits.bytes:
                    body.extend(chunk)
                    self.arriving += len(chunk)

        try:
            await asyncio.wait_for(read(), limits.seconds / 2)
        except asyncio.TimeoutError:
            problem = f"the body did not arrive within {limits.seconds / 2:g} seconds"
            raise Refusal(408, problem) from None
        finally:
            self.arriving -= len(body)
        if length > limits.bytes:
            raise Refusal(413, f"the file has more than {limits.bytes} bytes")
        if length > len(body):
            raise Refusal(503, "too many images are arriving")
        return bytes(body)


def detections_json(
    loaded: LoadedImage, prediction: Prediction, threshold: float, keypoint_center: float
) -> tuple[bytes, int]:
    """Return the JSON response for an image, and the number of detections in it.

    The masks of `prediction` must be COCO RLEs.
    """
    height, width = loaded.size
    count = int((prediction["scores"] >= threshold).sum())  # scores are in decreasing order
    objects = coco_objects(0, prediction, keypoint_center, count)
    names = prediction["names"][:count]
    detections = [{"category": n, **row} for n, row in zip(names, objects, strict=True)]
    for row in detections:
        del row["image_id"]
    content = {"width": width, "height": height, "detections": detections}
    return json.dumps(content, allow_nan=False).encode(), count


def build_app(predictor: Predictor, limits: Limits) -> Starlette:
    """Build the ASGI application."""
    service = Service(predictor, limits)
    every = ["*"]
    cors = Middleware(
        CORSMiddleware, allow_origins=limits.origins, allow_methods=every, allow_headers=every
    )
    return Starlette(
        routes=[
            Route("/", service.page),
            Route("/predict", service.predict, methods=["POST"]),
            Route("/model", service.model),
            Route("/health", service.health),
            Route("/metrics", service.metrics),
        ],
        exception_handlers={HTTPException: requests.error_response},
        middleware=[cors] if limits.origins else [],
        lifespan=lambda _: service.batcher,
    )
