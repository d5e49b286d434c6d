"""Every public operator compiles to one graph and can be exported, with the same results.

torch.fx can trace the modules.
"""

import pytest
import torch
from torch.utils._pytree import tree_map

from detlite import ops
from tests.builders import random_boxes
from tests.ops.roi_cases import features, ordinary_rois

SCALES = [1 / 4, 1 / 8]


def candidates(*shape):
    """Boxes, scores and groups."""
    return random_boxes(*shape), torch.rand(shape), torch.randint(0, 3, shape)


def valid(*shape):
    return torch.ones(shape, dtype=torch.bool)


def packed_masks():
    """A square and the boxes to crop it to."""
    square = torch.tensor([4.0, 4, 12, 4, 12, 12, 4, 12]).double()
    offsets = torch.tensor([0, 8]), torch.tensor([0, 1]), torch.zeros(1, 6, dtype=torch.int64)
    return square, *offsets, torch.tensor([0, -1]), random_boxes(2)


# By name: the operator, its tensors and its other arguments.
CASES = {
    "roi_align": lambda: (ops.roi_align, (features(), ordinary_rois(6)), ((3, 4), 0.25, 2, True)),
    "roi_pool": lambda: (ops.roi_pool, (features(), ordinary_rois(6)), ((3, 4), 0.25)),
    "pyramid_roi_align": lambda: (
        ops.pyramid_roi_align, ([features(), features()], ordinary_rois()), (7, SCALES, 2)
    ),
    "nms": lambda: (ops.nms, candidates(30)[:2], (0.5,)),
    "batched_nms": lambda: (ops.batched_nms, candidates(30), (0.5,)),
    "padded_nms": lambda: (ops.padded_nms, (*candidates(2, 30), valid(2, 30)), (0.5, 20)),
    "match_boxes": lambda: (
        ops.match_boxes, (random_boxes(2, 5), valid(2, 5), random_boxes(20)), ()
    ),
    "match_boxes_of_each_image": lambda: (
        ops.match_boxes, (random_boxes(2, 5), valid(2, 5), random_boxes(2, 20)), ()
    ),
    "crop_masks": lambda: (ops.crop_masks, packed_masks(), (14, False)),
    "heatmap_peaks": lambda: (ops.heatmap_peaks, (torch.randn(2, 3, 9, 9), random_boxes(2)), ()),
    "sigmoid_focal_loss": lambda: (
        ops.sigmoid_focal_loss,
        (torch.randn(5, 4), torch.randint(0, 2, (5, 4)).float()),
        (0.25, 2.0, "sum"),
    ),
}  # fmt: skip


class Module(torch.nn.Module):
    def __init__(self, function, settings):
        super().__init__()
        self.function, self.settings = function, settings

    def forward(self, *tensors):
        return self.function(*tensors, *self.settings)


@pytest.mark.parametrize("name", CASES)
def test_compiles_to_one_graph(device, name):
    function, tensors, settings = CASES[name]()
    tensors = tree_map(lambda x: x.to(device), tensors)
    torch.compiler.reset()  # every case compiles the same method
    traced = torch.compile(Module(function, settings), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(traced(*tensors), function(*tensors, *settings))


@pytest.mark.parametrize("name", CASES)
def test_exports(name):
    function, tensors, settings = CASES[name]()
    program = torch.export.export(Module(function, settings), tensors)
    calls = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert any(call.startswith("detlite.") for call in calls)
    torch.testing.assert_close(program.module()(*tensors), function(*tensors, *settings))


@pytest.mark.parametrize("module", [ops.RoIAlign((3, 4), 0.25, 2, True), ops.RoIPool(3, 0.25)])
def test_modules_are_traced_by_fx(module):
    maps, boxes = torch.randn(2, 3, 11, 13), ordinary_rois(6)
    graph = torch.fx.symbolic_trace(module)
    assert [node.op for node in graph.graph.nodes].count("call_function") == 1
    assert torch.equal(graph(maps, boxes), module(maps, boxes))


# The operators on RoIs and the focal loss have gradients: see test_pyramid.py, test_focal_loss.py.
@pytest.mark.parametrize("name", list(CASES)[3:-1])
def test_opcheck(device, name):
    function, tensors, settings = CASES[name]()
    operator = getattr(torch.ops.detlite, function.__name__)
    torch.library.opcheck(operator, (*(x.to(device) for x in tensors), *settings))
