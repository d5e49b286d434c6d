"""Limits of the service, and checks of requests against them."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from detlite.config import ConfigError

from .refusals import Refusal

# The formats that `read_image` decodes from bytes. Programs that do not know the type send the
# last one.
MEDIA_TYPES = (
    "image/jpeg", "image/png", "image/webp", "image/bmp", "image/tiff", "image/gif",
    "application/octet-stream",
)  # fmt: skip
_FORM = "multipart/form-data"
_TOTAL_PIXELS = 160_000_000
_DISCARDED_BODY = 4  # read at most this multiple of the size limit from a refused request


@dataclass(frozen=True)
class Limits:
    """Limits of the service.

    Attributes:
        bytes: maximum size of an image file.
        pixels: maximum size of an image; equals `max_pixels` of the predictor.
        seconds: maximum time from the header of a request to its response.
        requests: maximum number of requests waiting or running; more are refused immediately.
        batch: maximum number of images in a batch.
        threshold: minimum score of detections; equals `score_thresh` of the predictor.

    Raises:
        ConfigError: a limit is out of range.
    """

    bytes: int = 20_000_000
    pixels: int = 40_000_000
    seconds: float = 60.0
    requests: int = 64
    batch: int = 8
    threshold: float = 0.05

    def __post_init__(self) -> None:
        options = {
            "max-bytes": self.bytes,
            "max-pixels": self.pixels,
            "timeout": self.seconds,
            "max-requests": self.requests,
            "batch-size": self.batch,
        }
        for option, value in options.items():
            if not value > 0:
                raise ConfigError(f"--{option} {value:g}: must be more than 0")
        if not 0 <= self.threshold <= 1:
            raise ConfigError(f"--threshold {self.threshold:g}: a score must be between 0 and 1")

    @property
    def total_pixels(self) -> int:
        """Maximum number of pixels of all images that wait or run, which are in memory."""
        return max(_TOTAL_PIXELS, self.pixels)


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def check_header(request: Request, limits: Limits, in_progress: int) -> float:
    """Check the header of a request, and return the minimum score of its detections.

    Args:
        in_progress: number of other requests in progress.

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
    text = request.query_params.get("threshold", str(limits.threshold))
    try:
        threshold = float(text)
    except ValueError:
        threshold = math.nan
    if not limits.threshold <= threshold <= 1:
        raise Refusal(
            422,
            f"threshold is {text!r}",
            f"use a number from {limits.threshold:g} to 1; for a lower one start the server with "
            "a lower --threshold",
        )
    if in_progress >= limits.requests:
        raise Refusal(503, f"{in_progress} requests are waiting or running already")
    return threshold


async def read_body(
    request: Request, limits: Limits, deadline: float, discard: bool = False
) -> bytes:
    """Read the payload of a request, until `deadline` in seconds of `time.perf_counter`.

    The payload of a refused request is read and discarded, because most clients read the response
    only after they have sent everything.

    Raises:
        Refusal: the payload is too long or too late.
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
        await asyncio.wait_for(read(), deadline - time.perf_counter())
    except asyncio.TimeoutError:
        problem = f"the body did not arrive within {limits.seconds:g} seconds"
        raise Refusal(408, problem) from None
    if length > limits.bytes and not discard:
        raise _too_many_bytes(limits)
    return bytes(body)


async def extract_file(request: Request, body: bytes, limits: Limits) -> bytes:
    """Return the only file of a form, or raise a Refusal; return other payloads unchanged."""
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
        return await files[0].read()
    except MultiPartException as error:
        raise Refusal(
            422,
            f"the form cannot be read: {error.message}",
            "send one image file, as in curl -F file=@photo.jpg",
        ) from None


def _too_many_bytes(limits: Limits) -> Refusal:
    return Refusal(413, f"the file has more than {limits.bytes} bytes")
