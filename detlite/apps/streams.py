"""Standard output and standard error of the commands, on which no print fails."""

import contextlib
import os
import sys


def prepare_streams() -> None:
    """Replace missing streams, and let the others escape characters that they cannot encode.

    A service, or a program without a console, has no standard streams; a pipe of Windows often
    encodes in cp1252, which lacks most characters.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def discard_output() -> None:
    """Discard all further output, after the program that read it from a pipe has ended."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
