"""Pictures from the web, within bounds of size and time."""

from __future__ import annotations

import time
from http.client import HTTPException
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from detlite.data.errors import DataError
from detlite.data.remote.fetching import without_query

MOST_BYTES = 1 << 28  # of a picture's file: above that of any photo, below what fills memory

_TIMEOUT = 30.0  # seconds without a byte
_MOST_SECONDS = 300.0  # of a whole picture: a server may send a byte now and then for ever
_ATTEMPTS = 3
_PAUSE = 1.0  # seconds after the first of them; doubled after the next
_BUSY = (408, 425, 429)  # answers below 500 that a later attempt may change
_BLOCK = 1 << 16  # bytes
_RESERVED = ":/?#[]@!$&'()*+,;=%"  # of an address; all else that is no letter is quoted


def is_address(name: str) -> bool:
    """Whether a name is an address of the web, not a path."""
    return name.lower().startswith(("http://", "https://"))


def fetch(address: str, most_bytes: int = MOST_BYTES) -> bytes:
    """What is at an address, which is held in memory. A broken connection is tried three times.

    Raises:
        DataError: there is no network, or no answer, another answer than the file, a file of more
            than `most_bytes`, or one that is still on its way after five minutes. It names the
            address without what stands behind its ?, which may be a signature.
    """
    name, problem = without_query(address), ""
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE * 2 ** (attempt - 1))
        try:
            return _fetch(address, name, most_bytes)
        except HTTPError as error:
            problem = f"the server answers {error.code} {error.reason}".strip()
            if error.code < 500 and error.code not in _BUSY:
                break
        except URLError as error:
            problem = str(error.reason)
        except (OSError, HTTPException) as error:
            problem = str(error) or type(error).__name__
        except DataError:  # which is a ValueError, too
            raise
        except ValueError as error:  # of a host that is none
            problem = str(error)
            break
    raise DataError(f"{name}: cannot be downloaded ({problem})")


def _fetch(address: str, name: str, most_bytes: int) -> bytes:
    request = Request(quote(address, safe=_RESERVED), headers={"User-Agent": "detlite"})
    end = time.monotonic() + _MOST_SECONDS
    content = bytearray()
    with urlopen(request, timeout=_TIMEOUT) as answer:
        while block := answer.read1(_BLOCK):
            content += block
            if len(content) > most_bytes:
                raise DataError(f"{name}: has more than {most_bytes} bytes")
            if time.monotonic() > end:
                raise DataError(f"{name}: did not come within {_MOST_SECONDS:g} seconds")
        stated = answer.headers.get("Content-Length", "")
        if stated.isdigit() and len(content) != int(stated):
            raise ConnectionError(f"the connection ended after {len(content)} of {stated} bytes")
    return bytes(content)
