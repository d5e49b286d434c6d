"""Memory that the process has freed, kept for the next image."""

from __future__ import annotations

import ctypes
import sys

# Of glibc's malloc.h.
_OPTIONS = {
    -4: 0,  # M_MMAP_MAX
    -1: -1,  # M_TRIM_THRESHOLD
    -8: 1,  # M_ARENA_MAX: heaps of threads hold 64 MB, and malloc maps what does not fit into one
}
_kept = False


def keep_freed_memory() -> bool:
    """Lets malloc reuse freed memory instead of returning it to the system. Returns whether it can.

    Each map of an image takes megabytes, which glibc maps anew each time: the system then clears
    every page before its first use. Kept, they are cleared once. It holds for the whole process,
    which stays as large as it was at its largest; call it once, before there are threads that
    compute. Nothing happens without glibc.
    """
    global _kept
    if sys.platform.startswith("linux"):
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
        _kept = mallopt is not None and all(mallopt(*option) == 1 for option in _OPTIONS.items())
    return _kept


def keeps_freed_memory() -> bool:
    """Whether `keep_freed_memory` was called in this process and took effect."""
    return _kept
