"""Repeat transfers from servers after errors that may be temporary, and describe the errors."""

import errno
import logging
import random
import re
import socket
import ssl
import time
from collections.abc import Callable
from http.client import InvalidURL
from typing import TypeVar
from urllib.error import URLError

from .errors import RemoteError

_ATTEMPTS = 5  # in a row without progress
_FIRST_WAIT = 0.5  # seconds, doubled after each attempt
_MAX_WAIT = 120.0  # seconds without progress after which no attempt is made
_TRANSIENT = (408, 416, 425, 429)  # HTTP statuses below 500 that a later attempt may change
_PERMANENT = (
    *(FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError),
    *(ValueError, TypeError, NotImplementedError, InvalidURL),
)
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_MAX_REASON = 200  # characters
_logger = logging.getLogger(__name__)

Result = TypeVar("Result")


def without_secrets(url: str) -> str:
    """Return a URL for messages: the query and the part before @ may be secret and become "..."."""
    url = re.sub(r"(://)[^/?#\s]*@", r"\1...@", re.sub(r"[\0-\x1f\x7f]", "?", url))
    return re.sub(r"(https?://[^?\s]*\?)[^:\s]+", r"\1...", url)


def retry(
    name: str,
    action: Callable[[], Result],
    attempts: int = _ATTEMPTS,
    progress: Callable[[], int] = int,
) -> Result:
    """Return the result of `action`, which is repeated after errors that may be temporary.

    A growing value of `progress` restarts the count of failures. Raises RemoteError if `action`
    failed permanently or too often, and other errors of `action`: FileNotFoundError, ImportError,
    or OSError if the disk is full.
    """
    start, failures, reached = time.monotonic(), 0, progress()
    while True:
        try:
            return action()
        except (RemoteError, ImportError):
            raise
        except Exception as error:  # each file system has its own errors
            if isinstance(error, OSError) and error.errno in _NO_SPACE:
                raise
            if progress() > reached:
                start, failures, reached = time.monotonic(), 0, progress()
            failures += 1
            permanent, reason = _is_permanent(error), _reason(error)
            if permanent and isinstance(error, FileNotFoundError):
                raise
            if permanent or failures == attempts or time.monotonic() - start > _MAX_WAIT:
                count = f" after {failures} attempts" if failures > 1 else ""
                raise RemoteError(f"{name}: cannot be read{count} ({reason})") from error
        _logger.info("%s: attempt %d failed (%s)", name, failures, reason)
        # The random factor separates processes that failed together. SystemRandom does not change
        # the seeded generators.
        time.sleep(_FIRST_WAIT * 2 ** (failures - 1) * random.SystemRandom().uniform(0.5, 1))


def _is_permanent(error: BaseException) -> bool:
    """True if another attempt cannot succeed."""
    status = getattr(error, "status", None)
    if isinstance(status, int):
        return 300 <= status < 500 and status not in _TRANSIENT
    cause = error.__cause__ or getattr(error, "reason", None)
    if isinstance(cause, (ssl.SSLCertVerificationError, socket.gaierror)):
        return True
    if isinstance(error, FileNotFoundError) and type(cause).__module__.startswith("aiohttp"):
        # fsspec raises it for every failure of a HEAD request.
        return cause is not None and _is_permanent(cause)
    return isinstance(error, _PERMANENT)


def _reason(error: BaseException) -> str:
    """Describe an error in one line without signatures."""
    cause = error.__cause__
    if isinstance(error, FileNotFoundError) and cause is not None:
        error = cause
    status = getattr(error, "status", None)
    if isinstance(status, int):
        return f"HTTP status {status}"
    if isinstance(error, URLError):
        return str(error.reason)
    text = without_secrets(" ".join(str(error).split()))
    return f"{type(error).__name__}: {text[:_MAX_REASON]}" if text else type(error).__name__
