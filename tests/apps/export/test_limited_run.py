"""Small files that need much memory or never end are refused before this process runs them."""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from detlite.apps.export import limited_run
from detlite.apps.export.limited_run import run_limited
from detlite.apps.export.onnx import onnx_run
from detlite.apps.export.openvino import to_bytes
from detlite.errors import CheckpointError


def write_onnx_file(path: Path, size: int, functions: Sequence[Any] = ()) -> None:
    """Write a graph of a constant of `size` floats."""
    onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
    helper, types = onnx.helper, onnx.TensorProto
    one, shape = (
        helper.make_tensor("one", types.FLOAT, [1], [1.0]),
        helper.make_tensor("shape", types.INT64, [1], [size]),
    )
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["big"], value=one),
        helper.make_node("ReduceMax", ["big"], ["highest"], keepdims=0),
        helper.make_node("Add", ["pixels", "highest"], ["out"]),
    ]
    values = (helper.make_tensor_value_info(n, types.FLOAT, [1]) for n in ("pixels", "out"))
    graph = helper.make_graph(nodes, "graph", *([value] for value in values), [shape])
    opset = [helper.make_opsetid("", 18)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=9, functions=functions)
    helper.set_model_props(model, {"detlite": "{}"})
    onnx.save(model, path)


def test_constants_of_an_onnx_file(tmp_path):
    pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    write_onnx_file(tmp_path / "small.onnx", 2**10)
    metadata, run = onnx_run(tmp_path / "small.onnx")
    assert metadata == "{}"
    assert torch.equal(run(torch.ones(1))[0], torch.tensor([2.0]))
    write_onnx_file(tmp_path / "large.onnx", 2**29)
    with pytest.raises(CheckpointError, match=r"large\.onnx: cannot be run with 2\.0 GB"):
        onnx_run(tmp_path / "large.onnx")[1](torch.ones(1))


def test_functions_of_an_onnx_file(tmp_path):
    """A function that calls another one twice, and so on, 40 deep, runs a node 2^40 times."""
    pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
    nodes = [onnx.helper.make_node("Identity", [x], [y]) for x, y in (("a", "b"), ("b", "c"))]
    opset = [onnx.helper.make_opsetid("", 18)]
    twice = onnx.helper.make_function("own", "twice", ["a"], ["c"], nodes, opset)
    write_onnx_file(tmp_path / "a.onnx", 1, [twice])
    with pytest.raises(CheckpointError, match=r"loops or functions \(function twice\)"):
        onnx_run(tmp_path / "a.onnx")


def test_constants_of_an_openvino_file(tmp_path):
    openvino = pytest.importorskip("openvino", reason="needs the extra openvino")
    operators = openvino.opset13
    for name, size in (("small", 2**10), ("large", 2**29)):
        maps = operators.parameter([-1, -1, -1, 3], np.float32)
        big = operators.broadcast(np.float32(1), np.array([size]))
        largest = operators.reduce_max(big, np.array([0]))
        graph = openvino.Model([operators.add(maps, largest)], [maps])
        with zipfile.ZipFile(tmp_path / f"{name}.openvino", "w") as archive:
            for suffix, content in zip(("xml", "bin"), to_bytes(graph), strict=True):
                archive.writestr(f"part.{suffix}", content)
    run_limited(tmp_path / "small.openvino")
    with pytest.raises(CheckpointError, match=r"large\.openvino: cannot be run with 2\.0 GB"):
        run_limited(tmp_path / "large.openvino")


@pytest.mark.skipif("sys.platform == 'win32'", reason="Windows has no such limits")
def test_time(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    write_onnx_file(tmp_path / "a.onnx", 1)
    monkeypatch.setattr(
        limited_run, "_CODE", "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (1, 1))\n"
        "while True: pass",
    )  # fmt: skip
    with pytest.raises(CheckpointError, match="in 120 seconds"):
        run_limited(tmp_path / "a.onnx")
