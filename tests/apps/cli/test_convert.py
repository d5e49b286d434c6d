"""`detlite convert`, from its command line to the written checkpoint."""

from __future__ import annotations

import pytest
import torch

from detlite import build_model, load_checkpoint
from detlite.conversion.checkpoint.files import Checkpoint, read_checkpoint, save_checkpoint


@pytest.fixture
def model(tiny_config):
    return build_model(tiny_config())


@pytest.fixture
def weights(tiny_config, model, tmp_path):
    """A checkpoint of our own."""
    path = tmp_path / "ours.pth"
    save_checkpoint(Checkpoint(path, model.state_dict(), config=tiny_config().dump()))
    return path


def test_there_and_back(run_command, model, weights, tmp_path, capsys):
    theirs, back = tmp_path / "theirs.pth", tmp_path / "back.pth"
    assert run_command("convert", weights, theirs, "--to", "torchvision") == 0
    state = torch.load(theirs, weights_only=True)
    assert "backbone.fpn.inner_blocks.0.0.weight" in state
    assert run_command("convert", theirs, back) == 0
    assert f"{back}: {len(model.state_dict())} entries" in capsys.readouterr().out
    checkpoint = read_checkpoint(back)
    assert checkpoint.model.keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.equal(checkpoint.model[name], value), name
    assert len(checkpoint.categories) == 3
    opts = ["MODEL.DEVICE", "cpu", "MODEL.GROUP_NORM.NUM_GROUPS", 4]  # which no shape tells
    assert load_checkpoint(back, opts).model.roi_heads.mask is not None


def test_named_source_goes_before_what_is_found(run_command, weights, tmp_path, capsys):
    theirs = tmp_path / "theirs.pth"
    run_command("convert", weights, theirs, "--to", "torchvision")
    options = (theirs, tmp_path / "out.pth", "--from", "detectron2")
    assert run_command("convert", *options) == 2
    assert "looks like detectron2's, but" in capsys.readouterr().err
    assert not (tmp_path / "out.pth").exists()


def test_entries_of_no_framework(run_command, tmp_path, capsys):
    torch.save({"layer.weight": torch.zeros(3)}, tmp_path / "unknown.pth")
    assert run_command("convert", tmp_path / "unknown.pth", tmp_path / "out.pth") == 2
    assert "unknown.pth: its entries are none that a known framework" in capsys.readouterr().err
    torch.save({}, tmp_path / "empty.pth")
    assert run_command("convert", tmp_path / "empty.pth", tmp_path / "out.pth") == 2
    assert "empty.pth: holds neither a state dict" in capsys.readouterr().err
    assert not (tmp_path / "out.pth").exists()


def test_model_that_torchvision_lacks(run_command, tiny_config, tmp_path, capsys):
    state = build_model(tiny_config(c4=True)).state_dict()
    save_checkpoint(Checkpoint(tmp_path / "c4.pth", state))
    options = (tmp_path / "c4.pth", tmp_path / "out.pth", "--to", "torchvision")
    assert run_command("convert", *options) == 2
    assert (
        "a feature pyramid only; this model has no backbone.neck.output" in capsys.readouterr().err
    )


def test_weights_by_name(run_command, weights, tmp_path, monkeypatch, capsys):
    package = tmp_path / "some_weights"
    package.mkdir()
    (package / "__init__.py").touch()
    weights.rename(package / "some.pth")
    monkeypatch.syspath_prepend(tmp_path)
    out = tmp_path / "out.pth"
    assert run_command("convert", "package://some_weights", out) == 0
    assert read_checkpoint(out).config
    assert run_command("convert", "package://nowhere", out) == 2
    assert "there is no such package" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "written", "message"),
    [
        ("none.pth", "out.pth", "none.pth: cannot be read (No such file"),
        ("ours.pth", "no/such/folder/out.pth", "no such folder"),
        ("ours.pth", ".", "cannot be written ("),
    ],
)
def test_bad_paths_are_one_line_and_status_2(
    run_command, weights, tmp_path, capsys, given, written, message
):
    assert run_command("convert", tmp_path / given, tmp_path / written) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1
