"""Every public operator compiles to one graph and can be exported, with the same results.

torch.fx can trace the modules.
"""

import pytest
import torch
from torch.utils._pytree import tree_map_only

from detlite import ops
from tests.ops.cuda_on_cpu.cases import CASES, inputs
from tests.ops.roi_cases import ordinary_rois

NAMES = [
    "batched_nms", "crop_masks", "focal_loss", "heatmap_peaks", "match_boxes",
    "match_boxes_of_each_image", "nms", "padded_nms", "pyramid_roi_align", "roi_align", "roi_pool",
]  # fmt: skip


class Module(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *arguments):
        return self.function(*arguments)


@pytest.mark.parametrize("name", NAMES)
def test_compiles_to_one_graph(device, name):
    function, arguments = inputs(CASES[name], device)
    torch.compiler.reset()  # every case compiles the same method
    traced = torch.compile(Module(function), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(traced(*arguments), function(*arguments), equal_nan=True)


@pytest.mark.parametrize("name", NAMES)
def test_exports(name):
    function, arguments = inputs(CASES[name])
    program = torch.export.export(Module(function), tuple(arguments))
    calls = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert any(call.startswith("detlite.") for call in calls)
    actual = program.module()(*arguments)
    torch.testing.assert_close(actual, function(*arguments), equal_nan=True)


@pytest.mark.parametrize("module", [ops.RoIAlign((3, 4), 0.25, 2, True), ops.RoIPool(3, 0.25)])
def test_modules_are_traced_by_fx(module):
    maps, boxes = torch.randn(2, 3, 11, 13), ordinary_rois(6)
    graph = torch.fx.symbolic_trace(module)
    assert [node.op for node in graph.graph.nodes].count("call_function") == 1
    assert torch.equal(graph(maps, boxes), module(maps, boxes))


# The operators on RoIs and the focal loss have gradients: see test_pyramid.py, test_focal_loss.py.
@pytest.mark.parametrize("name", [name for name in NAMES if name[:3] not in ("foc", "pyr", "roi")])
def test_opcheck(device, name):
    function, arguments = inputs(CASES[name], device)
    arguments = tree_map_only(torch.Tensor, torch.nan_to_num, arguments)
    torch.library.opcheck(getattr(torch.ops.detlite, function.__name__), tuple(arguments))
