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
from tests.builders import tiny_config, write_weights


@pytest.fixture
def convert(run_command):
    """Return a function that runs `detlite convert --weights FIRST --output SECOND` and options."""
    return lambda weights, output, *options: run_command(
        "convert", "--weights", weights, "--output", output, *options
    )


@pytest.fixture(scope="module")
def model():
    """Return a model that torchvision has, too."""
    torch.manual_seed(0)
    return build_model(tiny_config(*EXPORTABLE))


@pytest.fixture(scope="module")
def files(model, tmp_path_factory):
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


@pytest.mark.slow
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


def test_files_that_cannot_be_converted(error_of, theirs, weights, tmp_path):
    torch.save({"layer.weight": torch.zeros(3)}, tmp_path / "unknown.pth")
    torch.save({}, tmp_path / "empty.pth")
    v2 = write_weights(
        tiny_config(*EXPORTABLE, "MODEL.ROI_BOX_HEAD.POOLER_TYPE", "ROIAlignV2"),
        tmp_path / "v2.pth",
    )
    for file, output, options, message in (
        (theirs, "out.pth", ("--from", "detectron2"), "looks like detectron2's, but"),
        ("unknown.pth", "out.pth", (), "unknown.pth: no known framework uses such entry names"),
        ("empty.pth", "out.pth", (), "empty.pth: contains neither a state dict"),
        (v2, "out.pth", ("--to", "torchvision"), "POOLER_TYPE ROIAlignV2 (needed: ROIAlign)"),
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
