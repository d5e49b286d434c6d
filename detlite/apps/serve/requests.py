"""Check requests: their hosts, origins and limits, and the responses to refused ones."""

import asyncio
import logging
import math
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from detlite.files.errors import DataError, TooLargeError

logger = logging.getLogger(__name__)

# The formats that `read_image` decodes from bytes. Clients that do not know the format send the
# last type.
MEDIA_TYPES = (
    "image/jpeg", "image/png", "image/webp", "image/bmp", "image/tiff", "image/gif",
    "application/octet-stream",
)  # fmt: skip
_FORM = "multipart/form-data"
_LOWEST_THRESHOLD = 0.05
LOOPBACK = ("127.0.0.1", "::1", "localhost")
# What the client can do, by HTTP status.
_REMEDIES = {
    403: "use the address that the server prints at its start, or start it with --allow-host NAME, "
    "and --cors ORIGIN for pages of other servers",
    408: "send a smaller image, or use a faster connection",
    413: "send a smaller image, or raise --max-bytes or --max-pixels of the server",
    415: f"send the image file uncompressed, as one of {', '.join(MEDIA_TYPES)}, or in a form "
    f"({_FORM})",
    422: "send a valid image with the channels of the model, as in curl -F file=@photo.jpg, and no "
    "other field; the only parameter is ?threshold=, a number from lowest_threshold (see /model, "
    "and --threshold of the server) to 1",
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
        requests: maximum number of images waiting or running; more are refused. Bodies that are
            arriving may take as much memory as this number of the largest files.
        batch: maximum number of images in a batch.
        threshold: minimum score of detections, unless a request has another one.
        hosts: names and addresses of the server, "*": any. Without them, a page could read the
            responses after pointing the name of its own host to this server (DNS rebinding).
        origins: origins of web pages, besides the server's own, that may send images and read the
            responses, "*": any. Without them, any page could send forms.
    """

    bytes: int = 20_000_000
    pixels: int = 40_000_000
    seconds: float = 60.0
    requests: int = 64
    batch: int = 8
    threshold: float = 0.05
    hosts: tuple[str, ...] = LOOPBACK
    origins: tuple[str, ...] = ()

    @property
    def lowest_threshold(self) -> float:
        """Lowest threshold of a request; equals `score_thresh` of the predictor."""
        return min(self.threshold, _LOWEST_THRESHOLD)


class Refusal(HTTPException):
    """Why a request cannot be answered with detections, and what the client can do."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(status, problem, {"Retry-After": "1"} if status == 503 else None)
        self.remedy = _REMEDIES[status]


def refusal_of(error: Exception, limits: Limits) -> Refusal:
    """Return the Refusal that an error of a prediction leads to."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, asyncio.TimeoutError):
        return Refusal(504, f"there was no result within {limits.seconds:g} seconds")
    if isinstance(error, TooLargeError):
        return Refusal(413, str(error).removeprefix("bytes: ").partition(". ")[0])
    if isinstance(error, DataError):
        return Refusal(422, f"the image cannot be read: {str(error).removeprefix('bytes: ')}")
    logger.error("a batch failed", exc_info=error)
    return Refusal(500, "the model failed")


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


def check_origin(request: Request, limits: Limits) -> None:
    """Raise a Refusal if the request has another host, or sends data from another origin."""
    host = request.headers.get("host", "").lower()
    name = re.sub(r":\d*$", "", host).strip("[]")
    if not {name, "*"} & {known.lower() for known in limits.hosts}:
        raise Refusal(403, f"the server does not answer requests to the host {name!r}")
    origin = request.headers.get("origin", f"http://{host}").lower()
    own = origin.partition("://")[2] == host  # a proxy may add https
    if request.method == "POST" and not own and not {origin, "*"} & {*limits.origins}:
        raise Refusal(403, f"pages of {origin} may not send images")


def check_header(request: Request, limits: Limits) -> float:
    """Check the header of a request, and return the minimum score of its detections.

    Raises:
        Refusal: the request must not be processed.
    """
    media_type = _media_type(request)
    encoding = request.headers.get("content-encoding", "identity")
    if media_type not in (*MEDIA_TYPES, _FORM) or encoding != "identity":
        kind = f"media type {media_type or 'unknown'} and the encoding {encoding}"
        raise Refusal(415, f"the body has the {kind}, which is not supported")
    query = request.query_params.multi_items() or [("threshold", str(limits.threshold))]
    try:
        [(name, text)] = query
        threshold = float(text)
    except ValueError:
        name, threshold = "", math.nan
    if name != "threshold" or not limits.lowest_threshold <= threshold <= 1:
        raise Refusal(422, f"the query is {request.url.query!r}")
    return threshold


async def extract_file(request: Request, body: bytes, limits: Limits) -> bytes:
    """Return the only file of a form, or another body unchanged. Raises Refusal."""
    if _media_type(request) != _FORM:
        return body

    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    parser = MultiPartParser(request.headers, stream(), max_files=1, max_fields=0)
    parser.spool_max_size = limits.bytes  # in memory
    try:
        form = await parser.parse()
        for file in form.values():
            if isinstance(file, UploadFile):
                return await file.read()
        raise MultiPartException("it contains no file")
    except MultiPartException as error:
        raise Refusal(422, f"the form cannot be read: {error.message}") from None
