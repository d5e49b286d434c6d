"""The responses to requests that the service refuses."""

from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

# What the client can do, by HTTP status.
_REMEDIES = {
    408: "send a smaller image, or use a faster connection",
    413: "send a smaller image, or raise --max-bytes or --max-pixels of the server",
    500: "see the log of the server, and send the image again",
    503: "send it again after the number of seconds in the header Retry-After",
    504: "send it again when fewer requests wait (see /metrics), or raise --timeout of the server",
}
_MAX_PROBLEM = 500  # characters, because requests contain long values


class Refusal(HTTPException):
    """A request that cannot be answered with detections, and what the client can do."""

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
