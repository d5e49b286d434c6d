"""Reading and writing checkpoint files, and naming files that are none."""

import argparse
import os
import re
import sys
import zipfile
from collections import defaultdict
from dataclasses import fields
from datetime import datetime, timezone
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from detlite.checkpoint.contents import Checkpoint
from detlite.checkpoint.files import read_checkpoint, save_checkpoint
from detlite.checkpoint.loading import load_weights
from detlite.errors import CheckpointError, DamagedCheckpointError


class RunsCode:
    """Creates the folder `ran` when it is unpickled."""

    def __init__(self, ran: Path) -> None:
        self.ran = ran

    def __reduce__(self):
        return os.mkdir, (str(self.ran),)


def test_round_trip_of_all_fields(toy, tmp_path):
    written = Checkpoint(
        tmp_path / "w.pth",
        {"weight": torch.arange(6.0).reshape(3, 2).T},  # as in another memory format
        [{"id": 7, "name": "red"}],
        "MODEL: {DEVICE: cpu}",
        "detectron2",
        backbone_only=True,
        training={"iteration": 2, "rng": [torch.zeros(1)]},
    )
    save_checkpoint(written)
    read = read_checkpoint(tmp_path / "w.pth")
    for field in fields(Checkpoint):
        if field.name not in ("model", "timm_backbone"):
            assert getattr(read, field.name) == getattr(written, field.name), field.name
    assert torch.equal(read.model["weight"], written.model["weight"])
    assert read.model["weight"].is_contiguous()


def test_failed_saves_keep_the_old_file(toy, tmp_path):
    path = tmp_path / "model_final.pth"
    save_checkpoint(Checkpoint(path, toy.state_dict()))
    with pytest.raises(Exception, match="pickle"):
        save_checkpoint(Checkpoint(path, toy.state_dict(), training={"bad": lambda: None}))
    load_weights(toy, read_checkpoint(path))
    (tmp_path / "folder.pth").mkdir()
    for other in (tmp_path / "none" / "model.pth", tmp_path / "folder.pth"):
        with pytest.raises(CheckpointError, match=f"{other.name}: cannot be written"):
            save_checkpoint(Checkpoint(other, toy.state_dict()))
    assert {file.name for file in tmp_path.iterdir()} == {
        "folder.pth", "last_checkpoint", path.name
    }  # fmt: skip


def test_pickled_objects_are_not_executed(toy, saved, tmp_path):
    ran = tmp_path / "ran"
    for value, name in ((RunsCode(ran), r"posix\.mkdir"), (re.compile("x"), r"re\._compile")):
        message = rf"w\.pth: contains a pickled {name}.*nothing was executed"
        with pytest.raises(CheckpointError, match=message):
            read_checkpoint(saved({"model": toy.state_dict(), "x": value}))
    assert not ran.exists()


def test_truncated_file(toy, saved):
    path = saved(toy.state_dict())
    data = path.read_bytes()
    for kept in (0, 1, 100, 2000, -1):
        path.write_bytes(data[:kept])
        with pytest.raises(CheckpointError, match=r"w\.pth: is (empty|not .* truncated)"):
            read_checkpoint(path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.pth", r"none\.pth: cannot be read \(No such file"),
        ("model_best.pt", r"did you mean .*/model_best\.pth\?"),
        ("", "cannot be read"),
        ("link.pth", r"link\.pth: cannot be read \(No such file[^:]*\)$"),
    ],
)
def test_missing_files(tmp_path, name, message):
    (tmp_path / "model_best.pth").touch()
    (tmp_path / "link.pth").symlink_to(tmp_path / "gone")
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(tmp_path / name)


@pytest.mark.parametrize("content", [[1, 2], {}, {"a": 1}, {"model": [1]}, {1: torch.zeros(1)}])
def test_files_without_weights(saved, content):
    with pytest.raises(CheckpointError, match=r"w\.pth: contains neither a state dict"):
        read_checkpoint(saved(content))


def test_fields_of_foreign_files_are_ignored(toy, saved):
    content = {"model": toy.state_dict(), "config": {"model": "other"}, "training": 3}
    checkpoint = read_checkpoint(saved(content, "w.onnx"))  # the suffix does not matter
    assert (checkpoint.config, checkpoint.training) == ("", {})


def test_names_of_categories_are_printable(toy, saved):
    """Names become part of configs, of tables and of files with a name per line."""
    row = {"id": 1, "name": "a\nb\x1b", "keypoints": ["\x07top"]}
    content = {"model": toy.state_dict(), "categories": [row], "convention": "detlite"}
    (row,) = read_checkpoint(saved(content)).categories
    assert (row["name"], row["keypoints"]) == (r"a\nb\x1b", [r"\x07top"])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("categories", "cat, dog"),
        ("categories", ["cat", "dog"]),
        ("categories", [{"id": "7", "name": "cat"}]),
        ("override", [3]),
        ("categories", [{"id": 1 << 70, "name": "cell"}]),
        ("categories", [{"id": 1, "name": "cell"}, {"id": 1, "name": "other"}]),
        ("categories", [{"id": 1, "name": "cell", "skeleton": [[[1, 2]]]}]),
        ("training", None),
    ],
)
def test_fields_of_wrong_type(toy, saved, tmp_path, field, value):
    save_checkpoint(Checkpoint(tmp_path / "w.pth", toy.state_dict()))
    content = torch.load(tmp_path / "w.pth", weights_only=True)
    with pytest.raises(DamagedCheckpointError, match=rf"w\.pth: is damaged: its '{field}'"):
        read_checkpoint(saved({**content, field: value}))


@pytest.mark.parametrize(("place", "length"), [(0.1, 1), (0.5, 64), (0.7, 1)])
def test_changed_bytes(tmp_path, place, length):
    """`torch.load` does not notice them."""
    path = tmp_path / "w.pth"
    save_checkpoint(Checkpoint(path, {"weight": torch.rand(20_000) + 1}))
    data = bytearray(path.read_bytes())
    start = int(len(data) * place)
    data[start : start + length] = bytes(~byte & 0xFF for byte in data[start : start + length])
    path.write_bytes(data)
    assert "weight" in torch.load(path, weights_only=True)["model"]
    with pytest.raises(
        DamagedCheckpointError, match=r"w\.pth: .* checksum of a record is wrong .*/data/0"
    ):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (lambda: torch.ones(1).expand(1 << 30, 1 << 10), r"b repeats .*\[1073741824, 1024\]"),
        (lambda: torch.eye(3).to_sparse(), r"contains a pickled torch\._utils\._rebuild_sparse"),
        (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8),
         r"contains a pickled torch\._utils\._rebuild_qtensor"),
        (lambda: torch.ones(1, device="meta"), r"contains a pickled torch\._utils\._rebuild_meta"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_tensors_that_are_not_arrays_of_values(saved, tmp_path, value, problem, own):
    content = state = {"a": torch.ones(1)}
    if own:
        save_checkpoint(Checkpoint(tmp_path / "w.pth", state))
        content = torch.load(tmp_path / "w.pth")
        state = content["model"]
    state["b"] = value()
    with pytest.raises(CheckpointError, match=rf"w\.pth: {problem}"):
        read_checkpoint(saved(content))


def test_containers_that_share_their_members(saved):
    content = [{"w": torch.ones(1)}]
    for _ in range(7):
        content = [content] * 60
    assert len(read_checkpoint(saved(content)).model) == 1


class HistoryBuffer(dict):
    """Like settings (EasyDict, CfgNode) and logs of mmengine, which are stored with weights."""

    def mean(self) -> float:
        return 0.0


def test_settings_and_logs_of_training_code_are_ignored(saved, tmp_path, monkeypatch):
    module = ModuleType("my_training.logging")
    monkeypatch.setattr(HistoryBuffer, "__module__", module.__name__)
    monkeypatch.setattr(HistoryBuffer.mean, "__module__", module.__name__)
    module.HistoryBuffer = HistoryBuffer
    monkeypatch.setitem(sys.modules, "my_training", ModuleType("my_training"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    settings = HistoryBuffer(lr=0.1, steps=[3])
    settings.values, settings.methods = np.arange(3.0), {"mean": HistoryBuffer.mean}
    settings.folder = Path("data")
    extras = {  # as of torchvision's reference training
        "args": argparse.Namespace(lr=0.1, output=Path("x"), settings=settings),
        "message_hub": {"log_scalars": {"loss": settings}, "lr": np.float64(0.1)},
        "date": datetime.now(tz=timezone.utc),
        "counts": defaultdict(list, {"a": [1]}),
    }
    content = {"state_dict": {"weight": torch.ones(2)}, **extras}
    path = saved(content, "epoch_25.pth")
    evil = argparse.Namespace(x=RunsCode(tmp_path / "ran"))
    saved({**content, "args": evil}, "evil.pth")
    saved({"model": settings, "net": torch.nn.Linear(2, 2)}, "whole.pth")
    monkeypatch.undo()
    assert read_checkpoint(path).model["weight"].tolist() == [1, 1]
    for name, kind in (("evil.pth", r"posix\.mkdir"), ("whole.pth", r"torch\.nn\.")):
        with pytest.raises(CheckpointError, match=rf"{name}: contains a pickled {kind}"):
            read_checkpoint(tmp_path / name)
    assert not (tmp_path / "ran").exists()


def _archive(path, *members):
    with zipfile.ZipFile(path, "w") as archive:
        for member in members:
            archive.writestr(member, "{}")


def _scripted(path):
    torch.jit.script(torch.nn.Linear(2, 2)).save(path)


WRITERS = {
    "model.onnx": (lambda p: p.write_bytes(b"\x08\x07\x12\x04test" + bytes(50)),
                   r"ONNX model: .*detlite\.Predictor\('model\.onnx'\)"),
    "scripted.pt": (_scripted, r"TorchScript program: .*torch\.jit\.load\('scripted\.pt'\)"),
    "a.pt2": (lambda p: _archive(p, "a/archive_format", "a/models/a.json"),
              r"program of torch\.export.*Predictor"),
    "m.openvino": (lambda p: _archive(p, "detlite.json", "backbone.xml"),
                   "OpenVINO model.*Predictor"),
    "ir.xml": (lambda p: p.write_text('<?xml version="1.0"?><net name="x">'), "OpenVINO"),
    "c.h5": (lambda p: p.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(99)), "HDF5.*no converter"),
    "m.keras": (lambda p: _archive(p, "metadata.json", "model.weights.h5"), "Keras"),
    "old.pt2": (lambda p: _archive(p, "serialized_exported_program.json"), r"torch\.export"),
    "w.zst": (lambda p: p.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(99)), "compressed.*unpack"),
    "w.npz": (lambda p: np.savez(p, a=np.ones(2)), r"numpy.*numpy\.load\('w\.npz'\)"),
    "many.zip": (lambda p: _archive(p, "readme.txt"), "zip archive.*unpack"),
    "c.yaml": (lambda p: p.write_text("MODEL:\n  DEVICE: cpu\n"), "config.*--config"),
    "page.pth": (lambda p: p.write_text("<!DOCTYPE html><html>"), "web page: download"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITERS)
def test_kind_is_named(name, tmp_path):
    write, message = WRITERS[name]
    write(tmp_path / name)
    with pytest.raises(CheckpointError, match=rf"{name}: is not a checkpoint.*{message}"):
        read_checkpoint(tmp_path / name)
