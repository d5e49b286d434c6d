"""Test that runs state their software, processor, command and commit."""

import subprocess

import pytest
import torch

import detlite
from detlite.config import load_config
from detlite.engine.environment import describe_environment
from detlite.engine.run import exclusive_run
from detlite.engine.run_files import write_config


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A git checkout with one committed file, in which the process works."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text("1\n")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "first"]):
        subprocess.run(["git", *command], check=True)
    return tmp_path


def test_config_and_log_describe_the_environment(checkout, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/bin/detlite", "train", "--config", "my cells.yaml", "a\nb"])
    (checkout / "model.py").write_text("2\n")
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    cfg = load_config(None, {"MODEL.DEVICE": "cpu", "OUTPUT_DIR": checkout / "run"})
    with exclusive_run(checkout / "run", "cpu"):
        write_config(cfg, checkout / "run")
    log, config = ((checkout / "run" / name).read_text() for name in ("log.txt", "config.yaml"))
    for line in (
        f"versions: detlite {detlite.__version__}",
        f", torch {torch.__version__}",
        "device: cpu (",
        r"command: detlite train --config 'my cells.yaml' 'a\nb'",
        f"git commit of {checkout}: {commit} modified",
    ):
        assert line in log
        assert line in config
    assert load_config(checkout / "run" / "config.yaml") == cfg


def test_a_folder_without_git_has_no_commit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert len(describe_environment(torch.device("cpu"))) == 3
    monkeypatch.setenv("PATH", "")  # git is not installed
    assert len(describe_environment(torch.device("cpu"))) == 3
