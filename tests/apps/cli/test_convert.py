"""Tests of `detlite convert`, from the command line to the written file."""

import pytest
import torch

from detlite import build_model, load_checkpoint
from detlite.conversion.checkpoint.files import Checkpoint, read_checkpoint, save_checkpoint


@pytest.fixture
def convert(run_command):
    """Return a function that runs `detlite convert --weights FIRST --output SECOND` and options."""
    return lambda weights, output, *options: run_command(
        "convert", "--weights", weights, "--output", output, *options
    )


@pytest.fixture
def model(tiny_config):
    return build_model(tiny_config())


@pytest.fixture
def weights(tiny_config, model, tmp_path):
    """Return a detlite checkpoint."""
    path = tmp_path / "ours.pth"
    save_checkpoint(Checkpoint(path, model.state_dict(), config=tiny_config().dump()))
    return path


def test_round_trip(convert, model, weights, tmp_path, capsys):
    theirs, back = tmp_path / "theirs.pth", tmp_path / "back.pth"
    assert convert(weights, theirs, "--to", "torchvision") == 0
    state = torch.load(theirs, weights_only=True)
    assert "backbone.fpn.inner_blocks.0.0.weight" in state
    assert convert(theirs, back) == 0
    assert f"{back}: {len(model.state_dict())} entries" in capsys.readouterr().out
    checkpoint = read_checkpoint(back)
    assert checkpoint.model.keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.equal(checkpoint.model[name], value), name
    assert len(checkpoint.categories) == 3
    opts = [
        "MODEL.DEVICE",
        "cpu",
        "MODEL.GROUP_NORM.NUM_GROUPS",
        4,
    ]  # not stored in any tensor shape
    assert load_checkpoint(back, opts).model.roi_heads.mask is not None


def test_from_overrides_recognition(convert, weights, tmp_path, capsys):
    theirs = tmp_path / "theirs.pth"
    convert(weights, theirs, "--to", "torchvision")
    options = (theirs, tmp_path / "out.pth", "--from", "detectron2")
    assert convert(*options) == 2
    assert "looks like detectron2's, but" in capsys.readouterr().err
    assert not (tmp_path / "out.pth").exists()


def test_unknown_framework(convert, tmp_path, capsys):
    torch.save({"layer.weight": torch.zeros(3)}, tmp_path / "unknown.pth")
    assert convert(tmp_path / "unknown.pth", tmp_path / "out.pth") == 2
    assert "unknown.pth: no known framework uses such entry names" in capsys.readouterr().err
    torch.save({}, tmp_path / "empty.pth")
    assert convert(tmp_path / "empty.pth", tmp_path / "out.pth") == 2
    assert "empty.pth: holds neither a state dict" in capsys.readouterr().err
    assert not (tmp_path / "out.pth").exists()


def test_model_that_torchvision_cannot_express(convert, tiny_config, tmp_path, capsys):
    state = build_model(tiny_config(c4=True)).state_dict()
    save_checkpoint(Checkpoint(tmp_path / "c4.pth", state))
    options = (tmp_path / "c4.pth", tmp_path / "out.pth", "--to", "torchvision")
    assert convert(*options) == 2
    assert (
        "a feature pyramid only; this model has no backbone.neck.output" in capsys.readouterr().err
    )


def test_weights_by_name(convert, weights, tmp_path, monkeypatch, capsys):
    package = tmp_path / "some_weights"
    package.mkdir()
    (package / "__init__.py").touch()
    weights.rename(package / "some.pth")
    monkeypatch.syspath_prepend(tmp_path)
    out = tmp_path / "out.pth"
    assert convert("package://some_weights", out) == 0
    assert read_checkpoint(out).config
    assert convert("package://nowhere", out) == 2
    assert "the package is not installed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("weights_file", "output", "message"),
    [
        ("none.pth", "out.pth", "none.pth: cannot be read (No such file"),
        ("ours.pth", "no/such/folder/out.pth", "there is no folder"),
        ("ours.pth", ".", "cannot be written ("),
    ],
)
def test_unusable_paths(convert, weights, tmp_path, capsys, weights_file, output, message):
    assert convert(tmp_path / weights_file, tmp_path / output) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1
