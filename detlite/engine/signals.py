"""Signals by which a scheduler takes a machine back: the run saves a checkpoint and ends."""

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
_SIGNALS = [getattr(signal, n) for n in ("SIGTERM", "SIGHUP") if hasattr(signal, n)]


class StoppedError(BaseException):
    """A signal ended the run. Like KeyboardInterrupt, it is not meant to be caught."""


class StopSignals:
    """Defers SIGTERM and SIGHUP within a `with` block, until the training loop asks for them.

    A second signal ends the process immediately. A signal that was ignored when the process
    started, as by nohup, stays ignored. Other threads than the main one cannot handle signals, so
    nothing changes there.

    Attributes:
        received: name of the received signal; empty if there was none.
    """

    def __init__(self) -> None:
        self.received = ""
        self._received_at = 0.0
        self._ends_immediately = False
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
    def ending_immediately(self) -> Iterator[None]:
        """Raise StoppedError when a signal arrives in the block, or if one arrived before.

        For blocks in which nothing can be lost.
        """
        self._ends_immediately = True
        try:
            self._raise_if_received()
            yield
        finally:
            self._ends_immediately = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
        if self.received and not (
            by_torchrun and time.monotonic() - self._received_at < _SAME_SIGNAL_SECONDS
        ):
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        if not self.received:
            self.received, self._received_at = signal.Signals(number).name, time.monotonic()
        if self._ends_immediately:
            self._raise_if_received()

    def _raise_if_received(self) -> None:
        if self.received:
            raise StoppedError(f"{self.received}: ended, no step is lost; continue by --resume")
