"""Memory that the process has freed, kept for the next image."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of glibc's malloc.h


def keep_freed_memory() -> bool:
    """Lets malloc reuse freed memory instead of returning it to the system. Returns whether it can.

    Each map of an image takes megabytes, which glibc maps anew each time: the system then clears
    every page before its first use. Kept, they are cleared once. It holds for the whole process,
    which stays as large as it was at its largest; call it once. Nothing happens without glibc.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return mallopt is not None and mallopt(_M_MMAP_MAX, 0) == mallopt(_M_TRIM_THRESHOLD, -1) == 1
