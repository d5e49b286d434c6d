"""Tests of `detlite convert`, from the command line to the written file."""

import shutil
from pathlib import Path

import pytest
import torch
from torchvision.models import detection
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead

from detlite import load_checkpoint
from detlite.checkpoint.files import read_checkpoint
from detlite.conversion.torchvision import TORCHVISION
from tests.builders import tiny_config, write_weights


@pytest.fixture
def convert(run_command):
    """Return a function that runs `detlite convert --weights FIRST --output SECOND` and options."""
    return lambda weights, output, *options: run_command(
        "convert", "--weights", weights, "--output", output, *options
    )


@pytest.fixture(scope="module")
def reference():
    """Return a detector of torchvision with narrow heads."""
    torch.manual_seed(0)
    body = resnet_fpn_backbone(backbone_name="resnet18", weights=None, trainable_layers=5)
    return detection.FasterRCNN(
        body, box_head=TwoMLPHead(256 * 49, 16), box_predictor=FastRCNNPredictor(16, 4)
    )


@pytest.fixture(scope="module")
def files(reference, tmp_path_factory):
    """Return the checkpoint of a model of detlite, and the weights of one of torchvision."""
    folder = tmp_path_factory.mktemp("convert")
    torch.save(reference.state_dict(), folder / "theirs.pth")
    return write_weights(tiny_config(), folder / "ours.pth"), folder / "theirs.pth"


@pytest.fixture
def weights(files, tmp_path):
    """Return a copy of the checkpoint."""
    return Path(shutil.copy(files[0], tmp_path))


@pytest.fixture
def theirs(files):
    return files[1]


def test_weights_config_and_categories(convert, reference, theirs, tmp_path, capsys):
    out, state = tmp_path / "out.pth", reference.state_dict()
    sizes = ["MODEL.RPN.ANCHOR_SIZES", "[8, 16, 32, 64, 128]", "INPUT.MIN_SIZE_TEST", "64"]
    assert convert(theirs, out, *sizes) == 0
    checkpoint = read_checkpoint(out)
    assert f"{out}: {len(checkpoint.model)} entries" in capsys.readouterr().out
    names = TORCHVISION.rename({name: name for name in state})
    assert checkpoint.model.keys() == names.keys()
    for name, value in checkpoint.model.items():
        assert torch.equal(value, state[names[name]]), name
    assert len(checkpoint.categories) == 3
    predictor = load_checkpoint(out, ["MODEL.DEVICE", "cpu"])
    assert predictor.min_size == 64
    assert predictor.model.rpn.anchor_generator.get_buffer("cell0")[1].tolist() == [-4, -4, 4, 4]


def test_assumed_settings_are_listed_with_their_keys(convert, theirs, tmp_path, caplog):
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


def test_files_that_cannot_be_converted(error_of, theirs, weights, tmp_path):
    torch.save({"layer.weight": torch.zeros(3)}, tmp_path / "unknown.pth")
    torch.save({}, tmp_path / "empty.pth")
    for file, output, options, message in (
        (theirs, "out.pth", ("--from", "detectron2"), "looks like detectron2's, but"),
        ("unknown.pth", "out.pth", (), "unknown.pth: no known framework uses such entry names"),
        ("empty.pth", "out.pth", (), "empty.pth: contains neither a state dict"),
        ("none.pth", "out.pth", (), "none.pth: cannot be read (No such file"),
        (weights, "no/such/folder/out.pth", (), "does not exist"),
        (weights, ".", (), "cannot be written ("),
    ):
        paths = ("--weights", tmp_path / file, "--output", tmp_path / output)
        assert message in error_of("convert", *paths, *options)
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
