"""Run `detlite train` in forked processes."""

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

import matplotlib.pyplot as plt  # noqa: F401  imported once, before the forks
import torch.utils.tensorboard  # noqa: F401
from PIL import Image

from detlite.apps.cli.main import run_command


def train_and_exit(args: list[str], output: Path, limit: int, delay: float) -> NoReturn:
    """Run the command in a forked process, in its own process group, and exit.

    Args:
        args: arguments of `detlite train`.
        output: file for stdout and stderr.
        limit: maximum size of a file in bytes; 0 for none.
        delay: seconds that reading an image takes longer, for 3 of 10 images.
    """
    os.setpgid(0, 0)
    # nohup, and a shell for its background jobs, may have set signals to be ignored.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with output.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    if delay:
        original, rng = Image.open, random.Random(0)

        def open_slowly(*args: Any, **kwargs: Any) -> Any:
            time.sleep(delay if rng.random() < 0.3 else 0)
            return original(*args, **kwargs)

        Image.open = open_slowly  # type: ignore[assignment]
    status = 1
    try:
        status = run_command("train", args)
    except KeyboardInterrupt:  # before or after the command handles it
        status = 130
    except BaseException:
        traceback.print_exc()
    finally:  # what an interpreter does at its end
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(status)


class Process:
    """A forked process that runs `train_and_exit`."""

    def __init__(self, *args: Any) -> None:
        self.status: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            train_and_exit(*args)
        with suppress(OSError):  # the child may have done it
            os.setpgid(self.pid, self.pid)

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the process; return False if it still runs."""
        end = time.monotonic() + seconds
        while self.status is None and time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
            else:
                time.sleep(0.01)
        return self.status is not None
