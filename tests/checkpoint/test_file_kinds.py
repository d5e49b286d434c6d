"""Files that are no checkpoints are named, with the way to use them."""

import zipfile

import numpy as np
import pytest
import torch

from detlite.checkpoint.files import read_checkpoint
from detlite.errors import CheckpointError


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
