"""Which checkpoint a run goes on from, whatever happened to its folder."""

from __future__ import annotations

import pytest
import torch

from detlite.conversion.checkpoint.files import Checkpoint, CheckpointError, save_checkpoint
from detlite.engine.run_files import newest_checkpoint


@pytest.fixture
def folder(tmp_path):
    """A run's folder with the checkpoints of iterations 2, 4 and 6, the last called final."""
    run = tmp_path / "run"
    run.mkdir()
    for iteration, name in ((2, "0000002"), (4, "0000004"), (6, "final")):
        weights = {"weight": torch.full((1000,), float(iteration))}
        checkpoint = Checkpoint(run / f"model_{name}.pth", weights)
        checkpoint.training["iteration"] = iteration
        save_checkpoint(checkpoint)
    return run


def resumed(folder):
    checkpoint = newest_checkpoint(folder)
    assert checkpoint is not None
    return checkpoint.training["iteration"]


def test_the_last_one_is_resumed_in_silence(folder, tmp_path, caplog):
    assert resumed(folder) == 6
    assert resumed(folder.rename(tmp_path / "moved")) == 6
    (tmp_path / "moved" / "last_checkpoint").write_text("model_0000002.pth\n")  # the user's wish
    assert resumed(tmp_path / "moved") == 2
    assert caplog.text == ""


def test_a_folder_without_a_run(tmp_path):
    assert newest_checkpoint(tmp_path) is None
    assert newest_checkpoint(tmp_path / "none") is None


@pytest.mark.parametrize(
    "note", [None, b"", b"gone.pth\n", bytes(range(100, 200)), b"\0" * 50, b"x" * 5000, b"..\n"]
)
def test_a_lost_note_loses_nothing(folder, caplog, note):
    (folder / "last_checkpoint").unlink()
    if note is not None:
        (folder / "last_checkpoint").write_bytes(note)
    assert resumed(folder) == 6
    assert "Resuming the newest whole checkpoint" in caplog.text
    (folder / "model_0000009.pth").write_bytes((folder / "model_0000004.pth").read_bytes())
    assert newest_checkpoint(folder).path.name == "model_0000009.pth"  # prolonged since


@pytest.mark.parametrize("damage", ["empty", "truncated", "zeroed"])
def test_the_newest_whole_one_is_resumed_and_the_others_named(folder, caplog, damage):
    def harm(name):
        data = bytearray((folder / name).read_bytes())
        data[2000:2100] = bytes(100)
        kept = {"empty": 0, "truncated": 2000, "zeroed": len(data)}[damage]
        (folder / name).write_bytes(data[:kept])

    harm("model_final.pth")
    assert resumed(folder) == 4
    assert "model_final.pth: is" in caplog.text
    harm("model_0000004.pth")
    caplog.clear()
    assert resumed(folder) == 2
    assert "model_final.pth: is" in caplog.text
    assert "model_0000004.pth: is" in caplog.text
    harm("model_0000002.pth")
    with pytest.raises(CheckpointError, match=r"no whole checkpoint.*final.*4\.pth.*2\.pth"):
        newest_checkpoint(folder)


@pytest.mark.parametrize("note", ["", "gone.pth\n"])
def test_a_note_of_no_checkpoint(tmp_path, note):
    (tmp_path / "last_checkpoint").write_text(note)
    with pytest.raises(CheckpointError, match=r"last_checkpoint: names .*no such file"):
        newest_checkpoint(tmp_path)


def test_other_checkpoints_are_no_part_of_the_run(folder):
    (folder / "model_best.pth").write_bytes((folder / "model_0000002.pth").read_bytes())
    for name in ("model_final.pth", "model_0000004.pth", "model_0000002.pth"):
        (folder / name).unlink()
    with pytest.raises(CheckpointError, match=r"names 'model_final\.pth'"):
        newest_checkpoint(folder)
