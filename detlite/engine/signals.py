"""Handle the signals of schedulers and Ctrl-C: a run saves a checkpoint before it ends."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

# torchrun forwards signals, so a signal to all processes of a job arrives twice.
_SAME_SIGNAL_SECONDS = 2.0
# Windows has no SIGHUP.
_SIGNALS = [getattr(signal, n) for n in ("SIGTERM", "SIGHUP", "SIGINT") if hasattr(signal, n)]


class StoppedError(KeyboardInterrupt):
    """A signal, `signal_name`, ended the run."""

    def __init__(self, signal_name: str, text: str) -> None:
        super().__init__(f"{signal_name}: {text}")
        self.signal_name = signal_name


class StopSignals:
    """Defers SIGTERM, SIGHUP and SIGINT (Ctrl-C) within a `with` block: the training loop reads
    `received` after each step.

    A second signal ends the process immediately; a second SIGINT raises KeyboardInterrupt. A signal
    that was ignored when the process started, as by nohup, stays ignored. Only the main thread
    can handle signals, so nothing changes in other threads.

    Attributes:
        received: name of the received signal; empty if there was none.
    """

    def __init__(self) -> None:
        self.received = ""
        self._received_at = 0.0
        self._how_to_continue = ""  # not empty while signals end the block immediately
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextmanager
    def ending_immediately(self, how_to_continue: str) -> Iterator[None]:
        """Raise StoppedError when a signal arrives in the block, or if one arrived before.

        For blocks in which nothing can be lost.
        """
        self._how_to_continue = how_to_continue
        try:
            self._raise_if_received()
            yield
        finally:
            self._how_to_continue = ""

    def _handle(self, number: int, frame: FrameType | None) -> None:
        by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
        if self.received and not (
            by_torchrun and time.monotonic() - self._received_at < _SAME_SIGNAL_SECONDS
        ):
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        if not self.received:
            self.received, self._received_at = signal.Signals(number).name, time.monotonic()
        if self._how_to_continue:
            self._raise_if_received()
        elif number == signal.SIGINT:  # print could be interrupted while it prints
            os.write(2, b"\nending after this step is saved; Ctrl-C again ends at once\n")

    def _raise_if_received(self) -> None:
        if self.received:
            raise StoppedError(self.received, f"ended, no step is lost; {self._how_to_continue}")
