"""The command `detlite`."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from detlite.__main__ import COMMANDS, main


def test_every_command_has_a_module_and_help(repo_root, capsys):
    files = {file.stem for file in (repo_root / "detlite" / "commands").glob("[a-z]*.py")}
    assert files == COMMANDS.keys()
    for name in COMMANDS:
        with pytest.raises(SystemExit) as exited:
            main([name, "--help"])
        assert exited.value.code == 0
        assert f"usage: detlite {name}" in capsys.readouterr().out


def test_help_and_version(capsys):
    for option, expected in (("--help", "  train      train the model"), ("--version", "detlite ")):
        with pytest.raises(SystemExit) as exited:
            main([option])
        assert exited.value.code == 0
        assert expected in capsys.readouterr().out


@pytest.mark.parametrize("given", [[], ["tarin"], ["--resume", "train"]])
def test_no_such_command(given, capsys):
    with pytest.raises(SystemExit) as exited:
        main(given)
    assert exited.value.code == 2
    assert "usage: detlite" in capsys.readouterr().err


def test_status_of_a_command(tmp_path, capsys):
    assert main(["train", "--config", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml: cannot be read" in capsys.readouterr().err


def test_module_runs_as_a_program(repo_root):
    command = [sys.executable, "-m", "detlite", "convert", "none.pth", "out.pth"]
    done = subprocess.run(command, cwd=repo_root, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "error: none.pth: cannot be read (No such file or directory)\n"


def test_tools_only_call_commands(repo_root):
    """A program of tools/ with a command's name holds nothing of its own."""
    called = set()
    for file in (repo_root / "tools").glob("*.py"):
        tree = ast.parse(file.read_text())
        found = [
            node.module.removeprefix("detlite.commands.")
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("detlite.comma")
        ]
        if found:
            called |= set(found)
            assert len(tree.body) == 5, file  # a docstring, three imports, the call
    assert called
    assert called <= COMMANDS.keys()
