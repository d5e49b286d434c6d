"""The files of a run: its log, folder, lock and environment, its norms and random numbers."""

import contextlib
import logging
import random
import signal
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch

import detlite
from detlite.config import ConfigError, load_config
from detlite.config.loading import flatten
from detlite.engine.rng import rng_state, seed_all, set_rng_state
from detlite.engine.run import exclusive_run, logging_to
from detlite.engine.run_config import resolve_frozen_norms
from detlite.engine.run_files import (
    check_output_dir,
    choose_output_dir,
    describe_environment,
    run_lock,
    write_config,
)


@pytest.fixture
def bare_root(monkeypatch):
    """Return a function that removes the root logger's handlers, as in a command."""

    def make():
        logger = logging.getLogger()
        monkeypatch.setattr(logger, "handlers", [])
        return logger

    return make


def test_messages_go_to_console_and_file(tmp_path, bare_root, capsys):
    bare_root()
    for message in ("first", "second"):
        with logging_to(tmp_path):
            logging.getLogger("detlite.engine").info(message)
            warnings.warn(f"{message} warning", stacklevel=1)
    text = (tmp_path / "log.txt").read_text()
    out = capsys.readouterr().out
    for message in ("first", "second", "first warning", "second warning"):
        assert message in text
        assert message in out


@pytest.mark.parametrize("captured", [False, True])
def test_logging_settings_are_restored(tmp_path, bare_root, capsys, captured):
    root_logger = bare_root()
    own = logging.NullHandler()
    root_logger.addHandler(own)
    logging.captureWarnings(captured)
    before = root_logger.level, warnings.showwarning
    try:
        with contextlib.suppress(ZeroDivisionError), logging_to(tmp_path):
            assert root_logger.handlers[0] is own
            logging.getLogger("detlite").info("message")
            _ = 1 / 0
        assert (root_logger.level, warnings.showwarning) == before
    finally:
        logging.captureWarnings(False)
    assert root_logger.handlers == [own]
    assert "message" in (tmp_path / "log.txt").read_text()
    assert capsys.readouterr().out == ""  # the caller configured handlers


def test_other_ranks_log_only_warnings_to_the_console(tmp_path, bare_root, monkeypatch, capsys):
    bare_root()
    monkeypatch.setattr("detlite.engine.run.is_main", lambda: False)
    with logging_to(tmp_path):
        logging.getLogger("detlite").info("quiet")
        logging.getLogger("detlite").warning("loud")
    out = capsys.readouterr().out
    assert "quiet" not in out
    assert "loud" in out
    assert not (tmp_path / "log.txt").exists()


def test_the_log_is_not_written_through_a_link(tmp_path):
    (tmp_path / "log.txt").symlink_to(tmp_path / "other.txt")
    with pytest.raises(OSError, match="is a symbolic link"), logging_to(tmp_path):
        pass
    assert not (tmp_path / "other.txt").exists()


_HOLD = """
import sys, time, filelock
with filelock.FileLock(sys.argv[1] + "/.run.lock"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_used_folder_is_not_mixed_with_a_new_run(tmp_path):
    folder = tmp_path
    for name in ("metrics.jsonl", "model_0000002.pth", "model_0000004.pth", "model_final.pth"):
        (folder / name).touch()
    with pytest.raises(
        ConfigError, match=r"OUTPUT_DIR .*metrics\.jsonl, model_final\.pth.*--resume"
    ):
        check_output_dir(folder, resume=False)
    check_output_dir(folder, resume=True)
    for name in ("metrics.jsonl", "model_final.pth"):
        (folder / name).unlink()
    with pytest.raises(ConfigError, match=r"model_0000004\.pth"):
        check_output_dir(folder, resume=False)
    check_output_dir(folder / "new", resume=False)


def test_a_run_without_a_named_folder_uses_the_next_number(tmp_path):
    folder = tmp_path / "photos"
    expected = [folder, tmp_path / "photos_2", tmp_path / "photos_3"]
    for place in expected:
        assert choose_output_dir(folder, resume=False) == place
        place.mkdir()
        assert choose_output_dir(folder, resume=False) == place  # an empty folder is no run
        (place / "metrics.jsonl").touch()
        assert choose_output_dir(folder, resume=True) == place
    assert choose_output_dir(tmp_path / "other", resume=True) == tmp_path / "other"


def test_second_run_is_refused(tmp_path):
    folder = tmp_path / "new" / "out"
    with run_lock(folder):
        refused = pytest.raises(ConfigError, match="out: another run is writing to this folder")
        with refused, run_lock(folder):
            pass
        with run_lock(folder, name="page.html"):
            pass
    assert not list(folder.iterdir())
    with run_lock(folder):
        pass


def test_lock_of_a_killed_process_is_taken_over(tmp_path):
    command = [sys.executable, "-c", _HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(ConfigError), run_lock(tmp_path):
            pass
        process.send_signal(signal.SIGKILL)
    assert list(tmp_path.iterdir())
    with run_lock(tmp_path):
        pass


def test_folder_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").touch()
    refused = pytest.raises(
        ConfigError, match=r"file.out: cannot be written to \(Not a directory\)"
    )
    with refused, run_lock(tmp_path / "file" / "out"):
        pass


@pytest.mark.parametrize(
    ("norm", "batch", "parts", "expected"),
    [
        ("BN", 4, 1, "BN"),
        ("BN", 3, 1, "FrozenBN"),
        ("BN", 8, 4, "FrozenBN"),
        ("SyncBN", 2, 1, "FrozenBN"),
        ("GN", 1, 1, "GN"),
    ],
)
def test_batch_norm_is_frozen_for_small_batches(tiny_config, norm, batch, parts, expected, caplog):
    def resolve(size, resumed=None):
        cfg = tiny_config(
            "MODEL.RESNETS.NORM", norm, "SOLVER.IMS_PER_BATCH", size,
            "SOLVER.ACCUMULATION_STEPS", parts, "MODEL.BACKBONE.FREEZE_NORM_BELOW", 4,
        )  # fmt: skip
        return resolve_frozen_norms(cfg, resumed)

    caplog.set_level("INFO")
    cfg = resolve(batch)
    assert expected == cfg.MODEL.RESNETS.NORM
    assert cfg.is_frozen()
    assert ("FREEZE_NORM_BELOW (4)" in caplog.text) == (norm != expected)
    assert resolve_frozen_norms(cfg) == cfg
    for size in (1, 16):  # a resumed run keeps its norms
        assert expected == resolve(size, dict(flatten(cfg))).MODEL.RESNETS.NORM


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


CPU = torch.device("cpu")


def draw():
    # Normal values come in pairs: an odd number leaves one in the state of numpy and Python.
    return random.gauss(0, 1), float(np.random.randn()), torch.rand(3).tolist()


def test_a_seed_determines_all_generators():
    seed_all(2**40 + 1)
    first = draw()
    seed_all(2**40 + 1)
    assert draw() == first
    seed_all(2)
    assert draw() != first


def test_the_state_is_restored_from_a_file(tmp_path):
    seed_all(3)
    draw()
    torch.save(rng_state(CPU), tmp_path / "rng.pth")
    expected = [draw(), draw()]
    seed_all(4)
    set_rng_state(torch.load(tmp_path / "rng.pth", weights_only=True), CPU)
    assert [draw(), draw()] == expected
