"""Signals wait for the loop, end what can be ended, and a second one ends everything."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from detlite.engine.signals import StoppedError, StopSignals

SIGNALS = pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])


def send(name):
    os.kill(os.getpid(), signal.Signals[name])


@SIGNALS
def test_a_signal_waits_and_handlers_come_back(name):
    before = signal.getsignal(signal.Signals[name])
    with StopSignals() as stop:
        assert stop.received == ""
        send(name)
        assert stop.received == name
    assert signal.getsignal(signal.Signals[name]) is before


@SIGNALS
def test_a_signal_ends_what_loses_nothing(name):
    with StopSignals() as stop:
        with pytest.raises(StoppedError, match=f"^{name}: ended"), stop.ending_immediately():
            send(name)
        with pytest.raises(StoppedError), stop.ending_immediately():
            pytest.fail("the signal came before")


def test_blocks_may_be_nested():
    """A program around a training loop."""
    with StopSignals() as outer, outer.ending_immediately():
        with StopSignals() as inner:
            send("SIGTERM")
            assert inner.received == "SIGTERM"
        assert outer.received == ""
        with pytest.raises(StoppedError):
            send("SIGTERM")


SCRIPT = """
import os, signal
from detlite.engine.signals import StopSignals
with StopSignals() as stop:
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.{second})
    print("alive", stop.received)
"""


def run(second, **env):
    env = {name: value for name, value in os.environ.items() if name != "TORCHELASTIC_RUN_ID"} | env
    command = [sys.executable, "-c", SCRIPT.format(second=second)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


def test_a_second_signal_ends_at_once():
    assert run("SIGHUP").returncode == -signal.SIGHUP


def test_of_torchrun_the_same_signal_comes_twice():
    done = run("SIGTERM", TORCHELASTIC_RUN_ID="1")
    assert (done.returncode, done.stdout) == (0, "alive SIGTERM\n")


def test_what_was_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as stop:
            send("SIGHUP")
            assert stop.received == ""
    finally:
        signal.signal(signal.SIGHUP, before)


def test_other_threads_leave_signals_alone():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def work():
        with StopSignals():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
