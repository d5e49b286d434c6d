"""What the service takes of a request: checked by its head, then while its body arrives."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass

from starlette.requests import Request

from .responses import Refusal

# Of what `read_image` decodes of bytes; the last one is what programs send that do not know.
MEDIA_TYPES = (
    "image/jpeg", "image/png", "image/webp", "image/bmp", "image/tiff", "image/gif",
    "application/octet-stream",
)  # fmt: skip
_READ_ANYWAY = 4  # times the limit of bytes: so much of a refused body is thrown away


@dataclass(frozen=True)
class Limits:
    """What the service takes.

    Attributes:
        bytes: of a picture's file.
        pixels: of a picture, which the predictor holds to: its `max_pixels`.
        seconds: from the head of a request to its answer.
        requests: that wait or run at a time; one more is refused at once.
        batch: the most pictures that are predicted together.
        threshold: the lowest score that is looked for, the predictor's `score_thresh`.
    """

    bytes: int = 20_000_000
    pixels: int = 40_000_000
    seconds: float = 60.0
    requests: int = 64
    batch: int = 8
    threshold: float = 0.05


def refusal_of(request: Request, limits: Limits, in_progress: int) -> Refusal | None:
    """Why a request is refused by its head alone, while so many others are in progress."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given not in MEDIA_TYPES:
        return Refusal(
            415,
            f"the body is of media type {given or 'unknown'}, which is not read",
            f"send the picture's file itself, as one of {', '.join(MEDIA_TYPES)}",
        )
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > limits.bytes:
        return _too_long(limits)
    try:
        threshold_of(request, limits)
    except Refusal as refusal:
        return refusal
    if in_progress >= limits.requests:
        return Refusal(
            503,
            f"{in_progress} requests are waiting or running already",
            "send it again after the seconds that the header Retry-After says",
        )
    return None


def threshold_of(request: Request, limits: Limits) -> float:
    """The lowest score that a request asks for; a Refusal where that is none."""
    text = request.query_params.get("threshold", str(limits.threshold))
    try:
        threshold = float(text)
    except ValueError:
        threshold = math.nan
    if not limits.threshold <= threshold <= 1:
        raise Refusal(
            422,
            f"threshold is {text!r}",
            f"give a number from {limits.threshold:g} to 1; for a lower one start the server with "
            "a lower --threshold",
        )
    return threshold


async def body_of(request: Request, limits: Limits, keep: bool, deadline: float) -> bytes:
    """The body; of a request that is refused it is read too, but not kept.

    Most clients look for an answer only after they have sent everything.

    Args:
        deadline: in seconds of `time.perf_counter`.

    Raises:
        Refusal: it is too long or too late.
        ClientDisconnect: nobody waits for an answer.
    """
    body, length = bytearray(), 0

    async def read() -> None:
        nonlocal length
        async for chunk in request.stream():
            length += len(chunk)
            if length > _READ_ANYWAY * limits.bytes:
                return
            if keep and length <= limits.bytes:
                body.extend(chunk)

    try:
        await asyncio.wait_for(read(), deadline - time.perf_counter())
    except asyncio.TimeoutError:
        raise Refusal(
            408,
            f"the body did not arrive within {limits.seconds:g} seconds",
            "send a smaller picture, or over a faster connection",
        ) from None
    if keep and length > limits.bytes:
        raise _too_long(limits)
    return bytes(body)


def _too_long(limits: Limits) -> Refusal:
    return Refusal(
        413,
        f"the file has more than {limits.bytes} bytes",
        "send a smaller or more compressed picture, or raise --max-bytes of the server",
    )
