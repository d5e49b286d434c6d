"""Limits of the service, checks of requests, and the responses to refused requests."""

import asyncio
import math
import time
import zlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

# The formats that `read_image` decodes from bytes. Clients that do not know the format send the
# last type.
MEDIA_TYPES = (
    "image/jpeg", "image/png", "image/webp", "image/bmp", "image/tiff", "image/gif",
    "application/octet-stream",
)  # fmt: skip
_FORM = "multipart/form-data"
_ENCODINGS = {"identity": False, "": False, "gzip": True, "x-gzip": True}  # True: compressed
_ONLY_PARAMETER = "use ?threshold=0.5 in the URL, once, which is the only parameter"
_LOWEST_THRESHOLD = 0.05
_TOTAL_PIXELS = 160_000_000
_DISCARDED_BODY = 4  # at most this multiple of the size limit is read from a refused request
# What the client can do, by HTTP status.
_REMEDIES = {
    408: "send a smaller image, or use a faster connection",
    413: "send a smaller image, or raise --max-bytes or --max-pixels of the server",
    500: "see the log of the server, and send the image again",
    503: "send it again after the number of seconds in the header Retry-After",
    504: "send it again when fewer requests wait (see /metrics), or raise --timeout of the server",
}
_MAX_PROBLEM = 500  # characters, because requests can contain long values


@dataclass(frozen=True)
class Limits:
    """Limits of the service.

    Attributes:
        bytes: maximum size of an image file.
        pixels: maximum size of an image; equals `max_pixels` of the predictor.
        seconds: maximum time from the header of a request to its response; a body must arrive in
            half of it.
        requests: maximum number of images waiting or running, more are refused; and of bodies that
            are arriving, see `Uploads`.
        batch: maximum number of images in a batch.
        threshold: minimum score of detections, unless a request has another one.
    """

    bytes: int = 20_000_000
    pixels: int = 40_000_000
    seconds: float = 60.0
    requests: int = 64
    batch: int = 8
    threshold: float = 0.05

    @property
    def lowest_threshold(self) -> float:
        """Lowest threshold of a request; equals `score_thresh` of the predictor."""
        return min(self.threshold, _LOWEST_THRESHOLD)

    @property
    def total_pixels(self) -> int:
        """Maximum number of pixels of all images in memory, that is, waiting or running."""
        return max(_TOTAL_PIXELS, self.pixels)


class Refusal(HTTPException):
    """Why a request cannot be answered with detections, and what the client can do."""

    def __init__(self, status: int, problem: str, remedy: str = "") -> None:
        super().__init__(status, problem, {"Retry-After": "1"} if status == 503 else None)
        self.remedy = remedy or _REMEDIES[status]


async def error_response(request: Request, error: Any) -> Response:
    """Return the JSON response to a Refusal, or to an error of the routes."""
    problem, remedy = error.detail, getattr(error, "remedy", None)
    if remedy is None:
        problem = f"{request.method} {request.url.path}: {error.detail}"
        remedy = "POST an image to /predict, or GET /, /model, /health or /metrics"
    if len(problem) > _MAX_PROBLEM:
        problem = problem[:_MAX_PROBLEM] + " ..."
    content = {"error": problem, "what_to_do": remedy, "status": error.status_code}
    return JSONResponse(content, error.status_code, error.headers)


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def check_header(request: Request, limits: Limits) -> float:
    """Check the header of a request, and return the minimum score of its detections.

    Raises:
        Refusal: the request must not be processed.
    """
    media_type = _media_type(request)
    if media_type not in (*MEDIA_TYPES, _FORM):
        raise Refusal(
            415,
            f"the body has the media type {media_type or 'unknown'}, which is not supported",
            f"send the image file, as one of {', '.join(MEDIA_TYPES)}, or in a form ({_FORM})",
        )
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > limits.bytes:
        raise _too_many_bytes(limits)
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in _ENCODINGS:
        raise Refusal(
            415,
            f"the body has the content encoding {encoding}, which is not supported",
            "send it with gzip, or without an encoding, because images are compressed already",
        )
    keys = [key for key, _ in request.query_params.multi_items()]
    if wrong := [key for key in keys if key != "threshold"] or keys[1:]:
        problem = f"the query has the parameter {wrong[0]!r}, which is unknown or repeated"
        raise Refusal(422, problem, _ONLY_PARAMETER)
    text = request.query_params.get("threshold", str(limits.threshold))
    try:
        threshold = float(text)
    except ValueError:
        threshold = math.nan
    if not limits.lowest_threshold <= threshold <= 1:
        raise Refusal(
            422,
            f"threshold is {text!r}",
            f"use a number from {limits.lowest_threshold:g} to 1; for a lower one start the "
            "server with a lower --threshold",
        )
    return threshold


def check_places(limits: Limits, in_progress: int) -> None:
    """Raise a Refusal if too many other requests are waiting or running."""
    if in_progress >= limits.requests:
        raise Refusal(503, f"{in_progress} requests are waiting or running already")


async def read_body(request: Request, limits: Limits, start: float, discard: bool = False) -> bytes:
    """Read the body of a request that started at `start` in seconds of `time.perf_counter`.

    With `discard`, for refused requests, the body is read and discarded, because most clients read
    the response only after they have sent everything.

    Raises:
        Refusal: the body is too long or too late.
        ClientDisconnect: the client has closed the connection.
    """
    body, length = bytearray(), 0

    async def read() -> None:
        nonlocal length
        async for chunk in request.stream():
            length += len(chunk)
            if length > _DISCARDED_BODY * limits.bytes:
                return
            if length <= limits.bytes and not discard:
                body.extend(chunk)

    try:
        await asyncio.wait_for(read(), start + limits.seconds / 2 - time.perf_counter())
    except asyncio.TimeoutError:
        problem = f"the body did not arrive within {limits.seconds / 2:g} seconds"
        raise Refusal(408, problem) from None
    if length > limits.bytes and not discard:
        raise _too_many_bytes(limits)
    return bytes(body)


async def extract_file(request: Request, body: bytes, limits: Limits) -> bytes:
    """Return the only file of a form, or another body; unpack gzip. Raises Refusal."""
    if _ENCODINGS.get(request.headers.get("content-encoding", "").strip().lower()):
        body = _unpack(body, limits)
    if _media_type(request) != _FORM:
        return body

    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    parser = MultiPartParser(request.headers, stream(), max_files=1, max_fields=8)
    parser.spool_max_size = limits.bytes  # in memory
    try:
        form = await parser.parse()
        files = [value for value in form.values() if isinstance(value, UploadFile)]
        if not files:
            raise MultiPartException("it contains no file")
        for name, value in form.multi_items():
            if not isinstance(value, UploadFile):
                problem = f"the form has the field {name!r}, but only a file is read from it"
                raise Refusal(422, problem, _ONLY_PARAMETER)
        return await files[0].read()
    except MultiPartException as error:
        raise Refusal(
            422,
            f"the form cannot be read: {error.message}",
            "send one image file, as in curl -F file=@photo.jpg",
        ) from None


def _unpack(body: bytes, limits: Limits) -> bytes:
    """Return the content of a body in gzip, which may be 1000 times as long."""
    stream = zlib.decompressobj(wbits=31)
    try:
        content = stream.decompress(body, limits.bytes + 1)
    except zlib.error:
        content = b""
    if len(content) > limits.bytes:
        raise _too_many_bytes(limits)
    if not stream.eof or stream.unused_data:
        raise Refusal(422, "the body is no valid gzip", "send the image without an encoding")
    return content


def _too_many_bytes(limits: Limits) -> Refusal:
    return Refusal(413, f"the file has more than {limits.bytes} bytes")
