"""Signals by which a scheduler takes a machine back: the run saves itself and ends."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

# torchrun passes on what it is sent, so that a signal to all processes of a job arrives twice.
_SAME_SIGNAL_SECONDS = 2.0
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class StoppedError(BaseException):
    """The run was told to end, and has. As with a KeyboardInterrupt, nothing should catch it."""


class StopSignals:
    """Within the `with` block SIGTERM and SIGHUP wait until the loop asks for them.

    A second one ends the process at once, as if this were not here. A signal that was ignored when
    the process started (as by nohup) stays so. In other threads than the main one, which cannot
    handle signals, nothing changes.

    Attributes:
        received: the name of the signal, empty before one came.
    """

    def __init__(self) -> None:
        self.received = ""
        self._since = 0.0
        self._may_end = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def ending_at_once(self) -> Iterator[None]:
        """While nothing can be lost: a signal raises a StoppedError where it arrives, or came."""
        self._may_end = True
        try:
            self._end_if_received()
            yield
        finally:
            self._may_end = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
        if self.received and not (
            by_torchrun and time.monotonic() - self._since < _SAME_SIGNAL_SECONDS
        ):
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        if not self.received:
            self.received, self._since = signal.Signals(number).name, time.monotonic()
        if self._may_end:
            self._end_if_received()

    def _end_if_received(self) -> None:
        if self.received:
            raise StoppedError(f"{self.received}: ended, and nothing is lost: --resume goes on")
