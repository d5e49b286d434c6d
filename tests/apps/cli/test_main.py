"""Tests of the dispatch of commands, their help texts and their exit statuses."""

import ast
import re
import signal
import subprocess
import sys
from argparse import Namespace

import pytest

from detlite.apps.cli.main import COMMANDS, PIPE_CLOSED, main
from detlite.apps.cli.models import EXPORT_FORMATS
from detlite.apps.cli.options import collect_overrides, command
from detlite.apps.cli.prediction import RESULT_FORMATS
from detlite.apps.export.exported_detector import SUFFIXES
from detlite.apps.prediction_files.writer import FORMATS
from tests.builders import run_python

# Options that mean the same in every command; no command may name them differently.
_SYNONYMS = {
    "--config": {"--cfg", "--yaml"},
    "--weights": {"--checkpoint", "--model"},
    "--output": {"--out", "--output-dir", "--dest"},
    "--threshold": {"--score-thresh", "--score", "--min-score"},
    "--batch-size": {"--batch-images", "--ims-per-batch"},
}
# Runs a command that prints.
_PRINTS = """
import sys
from detlite.apps.cli import main, options
{before}
def doctor(args):
    print("caf\\u00e9 \\u6f22")
    print("to standard error", file=sys.stderr)
    return 0
main.COMMANDS["doctor"] = options.command()(doctor)
status = main.main(["doctor"])
sys.stdout and print("status", status)
sys.exit(status)
"""


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "usage: detlite"),
        (["--resume", "train"], "usage: detlite"),
        (["trian", "--batch", "x"], "choose"),
        (["replay", "--batch", "x"], r"replay was removed: .*names its images"),
        (["analyze"], r"analyze was removed: .*FlopCounterMode"),
        (["suggest"], r"suggest was removed: .*predict --format coco"),
        (["train", "--unlabeled=x"], "--unlabeled was removed: .*predict --format coco"),
        (["export", "--format", "aoti"], "--format aoti was removed: use onnx"),
        (["export", "--format=aoti"], "--format aoti was removed: use onnx"),
        (["predict", "--output", ""], "--output: the value is empty"),  # "" is the current folder
        (["test", "--data="], "--data=: the value is empty"),
    ],
)
def test_invalid_arguments(arguments, problem, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    error = capsys.readouterr().err
    assert re.search(problem, error)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_and_the_common_option_names(command, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    text = capsys.readouterr().out
    assert f"usage: detlite {command}" in text
    assert f"    detlite {command}" in text
    options = set(re.findall(r"--[a-z][a-z0-9-]*", text))
    for name, synonyms in _SYNONYMS.items():
        assert not options & synonyms, f"detlite {command}: use {name}"


def test_help_imports_neither_torch_nor_numpy(repo_root):
    code = (
        "import sys\nfrom detlite.apps.cli.main import COMMANDS, main\n"
        "for command in [[], *([name] for name in COMMANDS)]:\n"
        "    try: main([*command, '--help'])\n    except SystemExit: pass\n"
        "    print(command, sorted({'torch', 'numpy', 'yacs', 'yaml'} & sys.modules.keys()))"
    )
    done = run_python(code, cwd=repo_root)
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(lines) == 1 + len(COMMANDS), done.stderr
    assert all(line.endswith("] []") for line in lines)


@pytest.mark.parametrize(
    ("option", "expected"),
    [("--help", "  train          Train a model and evaluate it."), ("--version", "detlite ")],
)
def test_help_and_version(option, expected, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([option])
    assert expected in capsys.readouterr().out


def test_choices_are_those_of_the_implementation():
    """The commands repeat them, because importing the implementation would import torch."""
    assert sorted(RESULT_FORMATS) == FORMATS.names()
    assert set(EXPORT_FORMATS) == SUFFIXES.keys()


def test_interrupt_of_a_command_is_one_line(monkeypatch, capsys):
    def interrupt(args):
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        raise KeyboardInterrupt

    monkeypatch.setitem(COMMANDS, "doctor", command()(interrupt))
    assert main(["doctor"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize("name", ["train", "test"])
def test_tools_only_call_the_command(name, repo_root):
    tree = ast.parse((repo_root / "tools" / f"{name}_net.py").read_text())
    assert len(tree.body) == 4  # a docstring, two imports, the call
    (call,) = tree.body[-1].body
    assert ast.unparse(call) == f"sys.exit(main(['{name}', *sys.argv[1:]]))"


def test_pairs_may_have_an_equals_sign_and_follow_the_values_of_an_option():
    words = ["MODEL.DEVICE=cpu", "A.B", "x=1", "C=2", "D", "a=b=c", "E=a=b"]
    args = Namespace(inputs=["A", "b.png", "SEED", "1"], size=[2.0, 3.0], overrides=words)
    collect_overrides(args)
    pairs = ["MODEL.DEVICE", "cpu", "A.B", "x=1", "C", "2", "D", "a=b=c", "E", "a=b"]
    assert args.overrides == [*pairs, "SEED", "1"]
    assert (args.inputs, args.size) == (["A", "b.png"], [2.0, 3.0])


@pytest.mark.parametrize("missing", ["stdout", "stderr"])
def test_commands_run_without_a_standard_stream(missing):
    done = run_python(_PRINTS.format(before=f"sys.{missing} = None"))
    assert done.returncode == 0, done.stderr
    assert ("status 0" in done.stdout) == (missing == "stderr")


def test_characters_and_readers_of_pipes():
    """Characters that a pipe cannot encode are escaped; a reader may end early."""
    command = [sys.executable, "-c", _PRINTS.format(before="")]
    env = {"PYTHONIOENCODING": "cp1252", "PATH": ""}
    done = subprocess.run(command, env=env, capture_output=True)
    assert done.stdout.splitlines() == [b"caf\xe9 \\u6f22", b"status 0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert process.wait() == PIPE_CLOSED
    assert "Traceback" not in process.stderr.read()
