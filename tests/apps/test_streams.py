"""Commands on consoles and pipes that lack a stream or most characters."""

import subprocess
import sys

import pytest

from detlite.apps.cli.main import PIPE_CLOSED

PRINTS = """
import sys, types
from detlite.apps.cli import main
{before}
command = types.ModuleType("detlite.apps.cli.doctor", "A command that prints.")
command.add_arguments = lambda parser: None
def run(args):
    print("caf\\u00e9 \\u6f22")
    print("to standard error", file=sys.stderr)
    return 0
command.run = run
sys.modules[command.__name__] = command
status = main.main(["doctor"])
sys.stdout and print("status", status)
sys.exit(status)
"""


@pytest.mark.parametrize("missing", ["stdout", "stderr"])
def test_commands_run_without_a_standard_stream(missing):
    code = PRINTS.format(before=f"sys.{missing} = None")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert ("status 0" in done.stdout) == (missing == "stderr")


def test_characters_that_a_pipe_cannot_encode_are_escaped():
    done = subprocess.run(
        [sys.executable, "-c", PRINTS.format(before="")],
        env={"PYTHONIOENCODING": "cp1252", "PATH": ""}, capture_output=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [b"caf\xe9 \\u6f22", b"status 0"]


def test_a_reader_that_ends_early_is_no_error():
    command = [sys.executable, "-c", PRINTS.format(before="")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert process.wait() == PIPE_CLOSED
    assert "Traceback" not in process.stderr.read()
