"""Tests of `detlite export`, from the command line to the written model."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from detlite.apps.export import exported_detector as exported
from detlite.data.datasets.synthetic import CATEGORIES
from detlite.structures.instances import Images
from tests.builders import tiny_config, write_noise, write_weights

Run = Callable[..., int]


@pytest.fixture
def run(run_command: Run) -> Run:
    """Return a function that runs the command and returns its exit status."""
    return partial(run_command, "export")


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Return the checkpoint of an untrained model that detects something everywhere."""
    sets = [
        {"name": name, "type": "shapes", "path": "shapes", "split": name, "images": 3, "seed": 1}
        for name in ("train", "test")
    ]
    cfg = tiny_config(
        "INPUT.MIN_SIZE_TEST", 192, "MODEL.ROI_HEADS.SCORE_THRESH", 0.0,
        "MODEL.ROI_BOX_HEAD.NUM_CLASSES", 6, "DATASETS.ROOT", str(tmp_path),
        "DATASETS.CATALOG", sets, "DATASETS.TRAIN", ("train",), "DATASETS.TEST", ("test",),
    )  # fmt: skip
    return write_weights(cfg, tmp_path / "model.pth", categories=CATEGORIES)


@pytest.mark.slow
def test_export_verifies_the_file(run, weights, tmp_path, capsys):
    photos = tmp_path / "photos"
    write_noise(photos / "a.png", 130, 180)
    (photos / "notes.txt").write_text("not an image")
    file = tmp_path / "model.pt2"
    options = ("--format", "pt2", "--output", file, "--check", photos)
    assert run("--weights", weights, *options) == 0
    printed, progress = capsys.readouterr()
    assert "with the model on 4 images" in progress  # 1 image, 2 other sizes, 1 blank
    assert re.search(r"compared \d+ pairs of objects: boxes differ by at most", printed)
    assert "the file agrees with the model" in printed


def test_file_that_disagrees_with_the_model(run, weights, tmp_path, capsys, monkeypatch):
    """Replace the graph of a model with an own config key by one with boxes half a pixel off."""
    file, own = tmp_path / "model.pt2", tmp_path / "own.py"
    own.write_text(
        "from detlite.config import Key, declare_keys\n"
        'declare_keys("MODEL", {Key("OWN", 1): "a key"})\n'
    )

    def write(path, note, model):
        torch.save(note, path)
        write.model = model

    def off(*inputs):
        with torch.no_grad():
            out = write.model.predict(Images(*inputs))
        return [out.boxes + 0.5, out.scores, out.labels, out.valid, out.mask_probs]

    monkeypatch.setattr(exported, "_write_pt2", write)
    monkeypatch.setattr(exported, "_pt2_run", lambda path: (torch.load(path), off))
    keys = "IMPORTS", f"['{own}']", "MODEL.OWN", 2
    assert run("--weights", weights, "--format", "pt2", "--output", file, *keys) == 1
    printed = capsys.readouterr().out
    assert "boxes differ by at most 0.5 pixels" in printed
    assert "DOES NOT AGREE" in printed


def test_file_that_cannot_be_run(error_of, weights, tmp_path, monkeypatch):
    """Write a graph that fails, as one does with a size that tracing made constant."""

    def fail(*inputs):
        raise RuntimeError("Guard failed: 32")

    monkeypatch.setattr(exported, "_write_pt2", lambda path, note, model: torch.save(note, path))
    monkeypatch.setattr(exported, "_pt2_run", lambda path: (torch.load(path), fail))
    options = "--weights", weights, "--format", "pt2", "--output", tmp_path / "model.pt2"
    error = error_of("export", *options)
    assert "was written, but does not run" in error
    assert "Guard failed: 32" in error


@pytest.mark.slow
def test_int8_prints_the_ap(run, weights, tmp_path, capsys):
    for package in ("openvino", "nncf"):
        pytest.importorskip(package, reason="needs the extra openvino")
    file = tmp_path / "model.openvino"
    options = ("--format", "openvino", "--int8", "--calibrate", 2, "--output", file)
    assert run("--weights", weights, *options) == 0
    printed = capsys.readouterr().out
    assert "test: bbox AP 0." in printed
    assert "test: segm AP 0." in printed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--format", "onnx", "--int8"), "--int8 is only supported by the format openvino"),
        (("--format", "pt2", "--check", "."), "the folder contains no image"),
        (("--format", "openvino", "--int8", "--calibrate", "0"), "must be at least 1"),
        (("--format", "openvino", "--int8", "DATASETS.TRAIN", "[]"), "DATASETS.TRAIN, which is"),
        (("--format", "openvino", "--int8", "DATASETS.TEST", "[]"), "add --evaluate NAME"),
        (("--format", "pt2", "MODEL.NO_KEY", "1"), "MODEL.NO_KEY"),
    ],
)
def test_unusable_options(error_of, weights, tmp_path, monkeypatch, options, message):
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    file = tmp_path / f"model{exported.SUFFIXES[options[1]]}"
    assert message in error_of("export", "--weights", weights, "--output", file, *options)
    assert not file.exists()
