"""Compare the ONNX translations of the operators with the kernels."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from detlite import ConfigError, ops
from detlite.apps.export.onnx import onnx_run, to_onnx
from detlite.errors import CheckpointError
from detlite.modeling.backbone.windows import pad_to_multiple

pytest.importorskip("onnxscript", reason="needs the extra onnx")
onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")


def export_function(
    function: Callable[..., Any], inputs: list[Tensor], dynamic: list[int], folder: Path
) -> Any:
    """Export a function to ONNX; the axis `dynamic[k]` of input k may have any length."""
    shapes = tuple({axis: Dim.AUTO} if axis >= 0 else None for axis in dynamic)
    module = nn.Module()
    module.forward = lambda *tensors: function(*tensors)
    program = torch.export.export(module, tuple(inputs), dynamic_shapes=(shapes,))
    count = len(program.graph_signature.user_outputs)
    names = [f"x{k}" for k in range(len(inputs))]
    onnx.save(to_onnx(program, names, [f"y{k}" for k in range(count)]), folder / "graph.onnx")
    return onnxruntime.InferenceSession(folder / "graph.onnx")


def run(session: Any, inputs: list[Tensor]) -> list[Tensor]:
    names = [argument.name for argument in session.get_inputs()]
    arrays = {name: x.numpy() for name, x in zip(names, inputs, strict=True)}
    return [torch.from_numpy(x) for x in session.run(None, arrays)]


@pytest.mark.parametrize(
    ("aligned", "sampling"), [pytest.param(False, 2, marks=pytest.mark.slow), (True, 0)]
)
def test_roi_align(aligned, sampling, tmp_path):
    def pool(fine: Tensor, coarse: Tensor, rois: Tensor, levels: Tensor) -> Tensor:
        scales = [0.25, 0.125]
        return ops.pyramid_roi_align([fine, coarse], rois, 3, scales, sampling, aligned, levels)

    def inputs(count: int) -> list[Tensor]:
        low = torch.rand(count, 2) * 60 - 8  # some RoIs lie outside of the map
        image = torch.arange(count) % 3 - 1  # -1 is padding
        sides = torch.rand(count, 2) * torch.tensor([[0.1], [40.0]])[torch.arange(count) % 2]
        rois = torch.cat([image[:, None], low, low + sides], dim=1)
        maps = [torch.randn(2, 5, 16, 16), torch.randn(2, 5, 8, 8)]
        return [*maps, rois, torch.arange(count) % 2]

    session = export_function(pool, inputs(6), [-1, -1, 0, 0], tmp_path)
    for count in (0, 1, 40):
        x = inputs(count)
        torch.testing.assert_close(run(session, x)[0], pool(*x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("limit", [5, pytest.param(200, marks=pytest.mark.slow)])
def test_padded_nms(limit, tmp_path):
    def suppress(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        return ops.padded_nms(*tensors, 0.5, limit)

    def inputs(count: int, share: float = 0.8) -> list[Tensor]:
        low = torch.randint(0, 20, (2, count, 2)).float()
        boxes = torch.cat([low, low + torch.randint(0, 12, (2, count, 2))], dim=2)
        scores = torch.randint(-4, 4, (2, count)) / 4  # many are equal
        valid = torch.rand(2, count) < share
        return [boxes, scores, torch.randint(0, 3, (2, count)), valid]

    session = export_function(suppress, inputs(50), [1, 1, 1, 1], tmp_path)
    for count, share in ((2, 0.0), *[(2, 0.8), (30, 0.8), (120, 0.8)] * 5):
        x = inputs(count, share)
        for actual, expected in zip(run(session, x), suppress(*x), strict=True):
            assert torch.equal(actual, expected)


@pytest.mark.slow
def test_cumsum_counts_in_float(tmp_path):
    def count(x: Tensor) -> tuple[Tensor, Tensor]:
        return (x > 0).cumsum(dim=1), x.cumsum(dim=0)

    session = export_function(count, [torch.randn(3, 8)], [1], tmp_path)
    x = torch.randn(3, 5)
    for actual, expected in zip(run(session, [x]), count(x), strict=True):
        torch.testing.assert_close(actual, expected)
    graph = onnx.shape_inference.infer_shapes(onnx.load(tmp_path / "graph.onnx")).graph
    types = {value.name: value.type.tensor_type.elem_type for value in graph.value_info}
    sums = [node for node in graph.node if node.op_type == "CumSum"]
    assert len(sums) == 2
    assert all(types.get(node.input[0], 1) == onnx.TensorProto.FLOAT for node in sums)


def test_padding_to_a_multiple(tmp_path):
    """ONNX rounds negative quotients in another direction than Python."""
    session = export_function(
        lambda x: pad_to_multiple(x, 32), [torch.rand(1, 3, 64, 256)], [3], tmp_path
    )
    for width in (33, 96, 130):
        x = torch.rand(1, 3, 64, width)
        assert torch.equal(run(session, [x])[0], pad_to_multiple(x, 32))


def test_operators_without_a_translation(tmp_path):
    maps, boxes = torch.rand(2, 1, 8, 8), torch.tensor([[1.0, 2.0, 9.0, 8.0]] * 2)
    with pytest.raises(ConfigError, match=r"ONNX cannot express detlite\.heatmap_peaks.*openvino"):
        export_function(ops.heatmap_peaks, [maps, boxes], [0, 0], tmp_path)
    assert not list(tmp_path.iterdir())


def test_errors_of_the_runtime_are_explained(tmp_path, capfd):
    node = onnx.helper.make_node("Reshape", ["x", "shape"], ["y"])
    shape = onnx.numpy_helper.from_array(np.array([4, 4]), "shape")
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, sides)
              for name, sides in (("x", ["h", "w"]), ("y", [4, 4]))]  # fmt: skip
    graph = onnx.helper.make_graph([node], "g", values[:1], values[1:], [shape])
    options = {"opset_imports": [onnx.helper.make_opsetid("", 18)], "ir_version": 10}
    model = onnx.helper.make_model(graph, **options)
    onnx.helper.set_model_props(model, {"detlite": "{}"})
    onnx.save(model, tmp_path / "a.onnx")
    _, run_file = onnx_run(tmp_path / "a.onnx")
    assert run_file(torch.ones(2, 8))[0].shape == (4, 4)
    with pytest.raises(CheckpointError, match=r"a\.onnx: cannot run on inputs of \[5, 8\] \("):
        run_file(torch.ones(5, 8))
    assert not capfd.readouterr().err
