"""Signals are deferred or end certain blocks, and a second signal ends the process."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from detlite.engine.signals import StoppedError, StopSignals

SIGNALS = pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])


def send(name):
    os.kill(os.getpid(), signal.Signals[name])


@SIGNALS
def test_a_signal_is_deferred_and_handlers_are_restored(name):
    before = signal.getsignal(signal.Signals[name])
    with StopSignals() as stop:
        assert stop.received == ""
        send(name)
        assert stop.received == name
    assert signal.getsignal(signal.Signals[name]) is before


@SIGNALS
def test_a_signal_ends_a_block_in_which_nothing_is_lost(name):
    with StopSignals() as stop:
        with (
            pytest.raises(StoppedError, match=f"^{name}: ended, no step is lost; again"),
            stop.ending_immediately("again"),
        ):
            send(name)
        with pytest.raises(StoppedError), stop.ending_immediately("again"):
            pytest.fail("the signal arrived before")


def test_blocks_may_be_nested():
    """`detlite.train` does so around the training loop."""
    with StopSignals() as outer, outer.ending_immediately("again"):
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


@pytest.mark.parametrize(
    ("second", "elastic", "status", "printed"),
    [("SIGHUP", {}, -signal.SIGHUP, ""),
     ("SIGTERM", {"TORCHELASTIC_RUN_ID": "1"}, 0, "alive SIGTERM\n")],
)  # fmt: skip
def test_a_second_signal_ends_the_process_but_torchrun_sends_two(second, elastic, status, printed):
    env = {name: value for name, value in os.environ.items() if name != "TORCHELASTIC_RUN_ID"}
    command = [sys.executable, "-c", SCRIPT.format(second=second)]
    done = subprocess.run(command, env=env | elastic, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (status, printed)


def test_a_second_ctrl_c_raises_keyboard_interrupt():
    """A notebook's kernel must survive it."""
    with StopSignals():
        send("SIGTERM")
        with pytest.raises(KeyboardInterrupt):
            send("SIGINT")


def test_ignored_signals_stay_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as stop:
            send("SIGHUP")
            assert stop.received == ""
    finally:
        signal.signal(signal.SIGHUP, before)


def test_other_threads_do_not_handle_signals():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def work():
        with StopSignals():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
