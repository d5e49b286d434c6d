"""Let malloc keep freed memory for the next image."""

import ctypes
import sys

# mallopt parameters and their values, see glibc's malloc.h.
_OPTIONS = {
    -4: 0,  # M_MMAP_MAX
    -1: -1,  # M_TRIM_THRESHOLD
    -8: 1,  # M_ARENA_MAX: thread heaps have 64 MB, and malloc maps larger blocks separately
}
_kept = False


def keep_freed_memory() -> bool:
    """Let malloc reuse freed memory instead of returning it to the system; return True on success.

    Each feature map takes megabytes, which glibc otherwise maps again each time, and the system
    clears every new page. The setting applies to the whole process, which keeps its maximum size.
    Call it once, before starting threads that compute. Without glibc it has no effect.
    """
    global _kept
    if sys.platform.startswith("linux"):
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
        _kept = mallopt is not None and all(mallopt(*option) == 1 for option in _OPTIONS.items())
    return _kept


def keeps_freed_memory() -> bool:
    """Return True if `keep_freed_memory` was called in this process and took effect."""
    return _kept
