"""Ctrl-C while the command `detlite` imports its modules, which takes seconds, ends it by one line.

By a handler of the signal: what C extensions make of a KeyboardInterrupt while they are imported is
an error of their own, and `detlite/__main__.py` could catch nothing before torch is imported.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

STATUS = 130  # of programs that SIGINT ended, in shells


def _watch_imports() -> None:
    """From here on SIGINT ends the process at once, if it is the command's."""
    if (
        _is_command()
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ):
        signal.signal(signal.SIGINT, _end)


def imports_are_done() -> None:
    """From here on SIGINT raises KeyboardInterrupt, as Python does it."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _is_command() -> bool:
    """Whether this is `detlite` or `python -m detlite`, and none of its loader processes."""
    # Python replaces the "-m" once it has found the module, for which it imports the package.
    as_module = sys.argv[:1] == ["-m"] and "detlite" in sys.orig_argv
    named = bool(sys.argv) and Path(sys.argv[0]).stem == "detlite"
    return (as_module or named) and multiprocessing.parent_process() is None


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"interrupted\n")
    os._exit(STATUS)


_watch_imports()
