"""The command `detlite`."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import types

import pytest

from detlite.apps.cli.main import COMMANDS, main


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


# The console script is these lines in a file of this name.
SCRIPT = "import sys; from detlite.apps.cli.main import main; sys.exit(main())"


@pytest.mark.parametrize("as_module", [True, False])
def test_interrupt_while_modules_are_imported_is_one_line(as_module, repo_root, tmp_path):
    (tmp_path / "torch.py").write_text("import time; print('here', flush=True); time.sleep(60)")
    (tmp_path / "detlite").write_text(SCRIPT)
    started = ["-m", "detlite"] if as_module else [str(tmp_path / "detlite")]
    done = subprocess.Popen(
        [sys.executable, *started, "train", "--config", "none.yaml"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{repo_root}", "PYTHONSAFEPATH": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path / "..",
    )  # fmt: skip
    assert done.stdout.readline() == "here\n"
    done.send_signal(signal.SIGINT)
    assert done.communicate(timeout=50)[1] == "interrupted\n"
    assert done.returncode == 130


def test_interrupt_of_a_command_is_one_line(monkeypatch, capsys):
    def interrupted(arguments):
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        raise KeyboardInterrupt

    command = types.SimpleNamespace(main=interrupted)
    monkeypatch.setitem(sys.modules, "detlite.apps.cli.doctor", command)
    assert main(["doctor"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_other_programs_keep_their_interrupts(repo_root, tmp_path):
    (tmp_path / "torch.py").write_text("import signal; print(signal.getsignal(2).__name__)")
    done = subprocess.run(
        [sys.executable, "-c", "import detlite"], capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{repo_root}"},
    )  # fmt: skip
    assert done.stdout == "default_int_handler\n"


def test_tools_only_call_commands(repo_root):
    """A program of tools/ with a command's name holds nothing of its own."""
    called = set()
    for file in (repo_root / "tools").glob("*.py"):
        tree = ast.parse(file.read_text())
        found = [
            node.module.removeprefix("detlite.apps.cli.")
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("detlite.comma")
        ]
        if found:
            called |= set(found)
            assert len(tree.body) == 5, file  # a docstring, three imports, the call
    assert called
    assert called <= COMMANDS.keys()
