"""The checkpoint from which a run resumes, also if files of its folder are damaged or missing."""

import pytest
import torch

from detlite.checkpoint.files import Checkpoint, save_checkpoint
from detlite.engine.resuming import newest_checkpoint
from detlite.errors import CheckpointError


@pytest.fixture
def folder(tmp_path):
    """Folder of a run with checkpoints of iterations 2, 4 and 6, the last one being final."""
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


def test_the_last_checkpoint_is_resumed_without_warnings(folder, tmp_path, caplog):
    assert resumed(folder) == 6
    assert resumed(folder.rename(tmp_path / "moved")) == 6
    (tmp_path / "moved" / "last_checkpoint").write_text("model_0000002.pth\n")  # edited by the user
    assert resumed(tmp_path / "moved") == 2
    assert caplog.text == ""


def test_a_folder_without_a_run(tmp_path):
    assert newest_checkpoint(tmp_path) is None
    assert newest_checkpoint(tmp_path / "none") is None


@pytest.mark.parametrize(
    "content", [None, b"", b"gone.pth\n", bytes(range(100, 200)), b"\0" * 50, b"x" * 5000, b"..\n"]
)
def test_without_a_valid_pointer_file_the_newest_checkpoint_is_resumed(folder, caplog, content):
    (folder / "last_checkpoint").unlink()
    if content is not None:
        (folder / "last_checkpoint").write_bytes(content)
    assert resumed(folder) == 6
    assert "Resuming from the newest undamaged checkpoint" in caplog.text
    (folder / "model_0000009.pth").write_bytes((folder / "model_0000004.pth").read_bytes())
    assert newest_checkpoint(folder).path.name == "model_0000009.pth"  # the run was extended


@pytest.mark.parametrize("damage", ["empty", "truncated", "zeroed"])
def test_the_newest_undamaged_checkpoint_is_resumed(folder, caplog, damage):
    def break_file(name):
        data = bytearray((folder / name).read_bytes())
        data[2000:2100] = bytes(100)
        kept = {"empty": 0, "truncated": 2000, "zeroed": len(data)}[damage]
        (folder / name).write_bytes(data[:kept])

    break_file("model_final.pth")
    assert resumed(folder) == 4
    assert "model_final.pth: is" in caplog.text
    break_file("model_0000004.pth")
    caplog.clear()
    assert resumed(folder) == 2
    assert "model_final.pth: is" in caplog.text
    assert "model_0000004.pth: is" in caplog.text
    break_file("model_0000002.pth")
    with pytest.raises(CheckpointError, match=r"no undamaged checkpoint.*final.*4\.pth.*2\.pth"):
        newest_checkpoint(folder)


@pytest.mark.parametrize("content", ["", "gone.pth\n"])
def test_a_pointer_to_no_checkpoint_is_an_error(tmp_path, content):
    (tmp_path / "last_checkpoint").write_text(content)
    with pytest.raises(CheckpointError, match=r"last_checkpoint names .*which does not exist"):
        newest_checkpoint(tmp_path)


def test_the_best_checkpoint_is_not_resumed(folder):
    (folder / "model_best.pth").write_bytes((folder / "model_0000002.pth").read_bytes())
    for name in ("model_final.pth", "model_0000004.pth", "model_0000002.pth"):
        (folder / name).unlink()
    with pytest.raises(CheckpointError, match=r"names 'model_final\.pth'"):
        newest_checkpoint(folder)
