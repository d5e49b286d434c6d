"""Tests of `detlite convert`, from the command line to the written file."""

import pytest
import torch

from detlite import build_model, load_checkpoint
from detlite.conversion.checkpoint.files import Checkpoint, read_checkpoint, save_checkpoint
from tests.apps.export.test_torchvision import EXPORTABLE


@pytest.fixture
def convert(run_command):
    """Return a function that runs `detlite convert --weights FIRST --output SECOND` and options."""
    return lambda weights, output, *options: run_command(
        "convert", "--weights", weights, "--output", output, *options
    )


@pytest.fixture
def cfg(tiny_config):
    return tiny_config(*EXPORTABLE)


@pytest.fixture
def model(cfg):
    return build_model(cfg)


@pytest.fixture
def weights(cfg, model, tmp_path):
    """Return a detlite checkpoint of a model that torchvision has, too."""
    path = tmp_path / "ours.pth"
    save_checkpoint(Checkpoint(path, model.state_dict(), config=cfg.dump()))
    return path


def test_round_trip(convert, model, weights, tmp_path, capsys):
    theirs, back = tmp_path / "theirs.pth", tmp_path / "back.pth"
    assert convert(weights, theirs, "--to", "torchvision") == 0
    assert "with which torchvision finds the same objects" in capsys.readouterr().out
    state = torch.load(theirs, weights_only=True)
    assert "backbone.fpn.inner_blocks.0.0.weight" in state
    sizes = ["MODEL.RPN.ANCHOR_SIZES", "[8, 16, 32, 64, 128]", "INPUT.MIN_SIZE_TEST", "64"]
    assert convert(theirs, back, *sizes) == 0
    assert f"{back}: {len(model.state_dict())} entries" in capsys.readouterr().out
    checkpoint = read_checkpoint(back)
    assert checkpoint.model.keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.equal(checkpoint.model[name], value), name
    assert len(checkpoint.categories) == 3
    predictor = load_checkpoint(back, ["MODEL.DEVICE", "cpu"])
    assert predictor.min_size == 64
    assert predictor.model.rpn.anchor_generator.get_buffer("cell0")[1].tolist() == [-4, -4, 4, 4]


def test_assumed_settings_are_listed_with_their_keys(convert, weights, tmp_path, caplog):
    theirs = tmp_path / "theirs.pth"
    convert(weights, theirs, "--to", "torchvision")
    caplog.clear()
    assert convert(theirs, tmp_path / "out.pth", "INPUT.MAX_SIZE_TEST", "200") == 0
    (block,) = [text for text in caplog.messages if "do not contain these settings" in text]
    assert "theirs.pth: the weights (torchvision) do not" in block
    for line in ("INPUT.MIN_SIZE_TEST 800", "MODEL.RPN.ANCHOR_SIZES (32, 64, 128, 256, 512)",
                 "MODEL.ROI_HEADS.DETECTIONS_PER_IMG 100"):  # fmt: skip
        assert f"\n  {line}" in block
    assert "INPUT.MAX_SIZE_TEST" not in block
    caplog.clear()
    load_checkpoint(tmp_path / "out.pth", ["MODEL.DEVICE", "cpu"])
    assert "do not contain these settings" not in caplog.text


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
    cfg = tiny_config(*EXPORTABLE, "MODEL.ROI_BOX_HEAD.POOLER_TYPE", "ROIAlignV2")
    path = tmp_path / "ours.pth"
    save_checkpoint(Checkpoint(path, build_model(cfg).state_dict(), config=cfg.dump()))
    assert convert(path, tmp_path / "out.pth", "--to", "torchvision") == 2
    assert "POOLER_TYPE ROIAlignV2 (needed: ROIAlign)" in capsys.readouterr().err
    assert not (tmp_path / "out.pth").exists()


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
