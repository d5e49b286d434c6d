"""Small files that need much memory or never end are refused before this process runs them."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from detlite.apps.export import limited_run
from detlite.apps.export.exported_detector import read_exported
from detlite.apps.export.limited_run import run_limited
from detlite.apps.export.onnx import onnx_run
from detlite.apps.export.openvino import to_bytes
from detlite.errors import CheckpointError

HEADER = """
<ir_version: 9, opset_import: ["": 18, "own": 1], metadata_props: ["detlite": "{}"]>
graph (float[1] pixels) => (float[1] out) {
"""
# A constant of SIZE floats.
GRAPH = f"""{HEADER}
    shape = Constant <value: tensor = int64[1] {{SIZE}}> ()
    big = ConstantOfShape <value: tensor = float[1] {{1.0}}> (shape)
    highest = ReduceMax <keepdims: int = 0> (big)
    out = Add (pixels, highest)
}}
"""
# A function that calls another one twice, and so on, 40 deep, would run a node 2^40 times.
FUNCTION = """
<domain: "own", opset_import: ["": 18]>
twice (a) => (c) { b = Identity(a) c = Identity(b) }
"""
LOOP = """
    n = Constant <value: tensor = int64 {4611686018427387904}> ()
    yes = Constant <value: tensor = bool {1}> ()
    out = Loop (n, yes, pixels) <body = body (int64 i, bool go, float[1] x) =>
        (bool next, float[1] y) { next = Identity(go) y = Identity(x) }>
"""
BRANCH = f"""
    c = Constant <value: tensor = bool {{1}}> ()
    out = If (c) <then_branch = one () => (float[1] out) {{ {LOOP} }},
                  else_branch = other () => (float[1] out) {{ {LOOP} }}>
"""


def write_onnx_file(path: Path, size: int = 1, text: str = GRAPH) -> None:
    onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
    pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    onnx.save(onnx.parser.parse_model(text.replace("SIZE", str(size))), path)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (GRAPH + FUNCTION, "function twice"),
        *((f"{HEADER}{body}}}", "Loop") for body in (LOOP, BRANCH)),
    ],
)
def test_loops_and_functions_of_an_onnx_file(tmp_path, text, found):
    write_onnx_file(tmp_path / "a.onnx", text=text)
    with pytest.raises(CheckpointError, match=rf"contains loops or functions \({found}\)"):
        read_exported(tmp_path / "a.onnx")


def test_constants_of_an_onnx_file(tmp_path):
    write_onnx_file(tmp_path / "small.onnx", 2**10)
    metadata, run = onnx_run(tmp_path / "small.onnx")
    assert metadata == "{}"
    assert torch.equal(run(torch.ones(1))[0], torch.tensor([2.0]))
    write_onnx_file(tmp_path / "large.onnx", 2**29)
    with pytest.raises(CheckpointError, match=r"large\.onnx: cannot be run with 2\.0 GB"):
        onnx_run(tmp_path / "large.onnx")[1](torch.ones(1))


@pytest.mark.parametrize("grows", [False, True])
def test_memory_of_an_openvino_file(tmp_path, grows):
    """Of a constant, and of maps that double 24 times."""
    openvino = pytest.importorskip("openvino", reason="needs the extra openvino")
    operators = openvino.opset13
    for name, size, doublings in (("small", 2**10, 2), ("large", 2**29, 24)):
        maps = operators.parameter([-1, -1, -1, 3], np.float32)
        big = operators.broadcast(np.float32(1), np.array([size]))
        largest = operators.reduce_max(big, np.array([0]))
        wide = maps
        for _ in range(doublings):
            wide = operators.concat([wide, wide], 2)
        widest = operators.reduce_max(wide, np.array([2]))
        graph = openvino.Model([widest if grows else operators.add(maps, largest)], [maps])
        with zipfile.ZipFile(tmp_path / f"{name}.openvino", "w") as archive:
            for suffix, content in zip(("xml", "bin"), to_bytes(graph), strict=True):
                archive.writestr(f"part.{suffix}", content)
    run_limited(tmp_path / "small.openvino")
    with pytest.raises(CheckpointError, match=r"large\.openvino: cannot be run with 2\.0 GB"):
        run_limited(tmp_path / "large.openvino")


@pytest.mark.skipif("sys.platform == 'win32'", reason="Windows has no such limits")
def test_time(tmp_path, monkeypatch):
    write_onnx_file(tmp_path / "a.onnx")
    monkeypatch.setattr(
        limited_run, "_CODE", "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (1, 1))\n"
        "while True: pass",
    )  # fmt: skip
    with pytest.raises(CheckpointError, match="in 120 seconds"):
        run_limited(tmp_path / "a.onnx")
