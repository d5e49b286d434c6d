"""`detlite train` in forked processes."""

from __future__ import annotations

import atexit
import os
import random
import resource
import signal
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import matplotlib.pyplot as plt  # noqa: F401  what the program imports later, once for all
import torch.utils.tensorboard  # noqa: F401
from PIL import Image

from detlite.apps.cli import train

ROOT = Path(__file__).parents[2]


def live(args: list[str], output: Path, limit: int, slow: float) -> NoReturn:
    """What a forked process does: it is the program, in a process group of its own."""
    os.setpgid(0, 0)
    # Whatever this program was started by: nohup, and a shell in the background, ignore some.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with output.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    if slow:
        opened, rng = Image.open, random.Random(0)

        def slowly(*args: Any, **kwargs: Any) -> Any:
            time.sleep(slow if rng.random() < 0.3 else 0)
            return opened(*args, **kwargs)

        Image.open = slowly  # type: ignore[assignment]
    status = 1
    try:
        status = train.main(args)
    except KeyboardInterrupt:  # before main looks out for it, or after
        status = 130
    except BaseException:
        traceback.print_exc()
    finally:  # as at the end of an interpreter
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(status)


class Process:
    """A forked process that runs `live`."""

    def __init__(self, *args: Any) -> None:
        self.status: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            live(*args)
        with suppress(OSError):  # whoever comes first
            os.setpgid(self.pid, self.pid)

    def wait(self, seconds: float) -> bool:
        """Waits for its end; whether it has come."""
        end = time.monotonic() + seconds
        while self.status is None and time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
            else:
                time.sleep(0.01)
        return self.status is not None
