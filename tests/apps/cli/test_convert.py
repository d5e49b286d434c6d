"""Tests of `detlite convert`, from the command line to the written file."""

import shutil
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
import torch

from detlite import build_model, load_checkpoint
from detlite.apps.cli.main import main
from detlite.checkpoint.files import Checkpoint, read_checkpoint, save_checkpoint
from tests.apps.export.test_torchvision import EXPORTABLE


@pytest.fixture
def convert(run_command):
    """Return a function that runs `detlite convert --weights FIRST --output SECOND` and options."""
    return lambda weights, output, *options: run_command(
        "convert", "--weights", weights, "--output", output, *options
    )


@pytest.fixture(scope="module")
def model(tiny_config):
    """Return a model that torchvision has, too."""
    torch.manual_seed(0)
    return build_model(tiny_config(*EXPORTABLE))


@pytest.fixture(scope="module")
def files(tiny_config, model, tmp_path_factory):
    """Return a detlite checkpoint of the model, and the weights that the command exports."""
    folder = tmp_path_factory.mktemp("convert")
    ours, theirs = folder / "ours.pth", folder / "theirs.pth"
    cfg = tiny_config(*EXPORTABLE)
    save_checkpoint(Checkpoint(ours, model.state_dict(), config=cfg.dump()), last=False)
    command = ["convert", "--weights", ours, "--output", theirs, "--to", "torchvision"]
    with redirect_stdout(StringIO()) as out:
        assert main([str(word) for word in command]) == 0
    assert "with which torchvision finds the same objects" in out.getvalue()
    return ours, theirs


@pytest.fixture
def weights(files, tmp_path):
    """Return a copy of the checkpoint."""
    return Path(shutil.copy(files[0], tmp_path))


@pytest.fixture
def theirs(files):
    return files[1]


def test_round_trip(convert, model, theirs, tmp_path, capsys):
    back = tmp_path / "back.pth"
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


def test_from_overrides_recognition(convert, theirs, tmp_path, capsys):
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
    assert "empty.pth: contains neither a state dict" in capsys.readouterr().err
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
        ("ours.pth", "no/such/folder/out.pth", "does not exist"),
        ("ours.pth", ".", "cannot be written ("),
    ],
)
def test_unusable_paths(convert, weights, tmp_path, capsys, weights_file, output, message):
    assert convert(tmp_path / weights_file, tmp_path / output) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1
