"""Every public operator can be exported by torch.export, and the modules be traced by torch.fx."""

import pytest
import torch

from detlite import ops
from tests.ops.roi_cases import ordinary_rois


def pooled(pool, *arguments):
    return lambda: (pool, (torch.randn(2, 3, 11, 13), ordinary_rois(6)), arguments)


def scored_boxes():
    corner = torch.rand(30, 2) * 20
    boxes = torch.cat([corner, corner + torch.rand(30, 2) * 20], dim=1)
    return boxes, torch.rand(30)


CASES = {
    "roi_align": pooled(ops.roi_align, (3, 4), 0.25, 2, True),
    "roi_pool": pooled(ops.roi_pool, (3, 4), 0.25),
    "nms": lambda: (ops.nms, scored_boxes(), (0.5,)),
    "batched_nms": lambda: (
        ops.batched_nms,
        (*scored_boxes(), torch.randint(0, 3, (30,))),
        (0.5,),
    ),
    "padded_nms": lambda: (
        ops.padded_nms,
        (
            *(x[None] for x in scored_boxes()),
            torch.randint(0, 3, (1, 30)),
            torch.ones(1, 30, dtype=torch.bool),
        ),
        (0.5, 20),
    ),
    "match_boxes": lambda: (
        ops.match_boxes,
        (scored_boxes()[0][None], torch.ones(1, 30, dtype=torch.bool), scored_boxes()[0]),
        (),
    ),
    "sigmoid_focal_loss": lambda: (
        ops.sigmoid_focal_loss,
        (torch.randn(5, 4), torch.randint(0, 2, (5, 4)).float()),
        (0.25, 2.0, "sum"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_exports(name):
    function, tensors, settings = CASES[name]()

    class Module(torch.nn.Module):
        def forward(self, *tensors):
            return function(*tensors, *settings)

    program = torch.export.export(Module(), tensors)
    calls = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert any(call.startswith("detlite.") for call in calls)
    torch.testing.assert_close(program.module()(*tensors), function(*tensors, *settings))


@pytest.mark.parametrize("module", [ops.RoIAlign((3, 4), 0.25, 2, True), ops.RoIPool(3, 0.25)])
def test_modules_are_traced_by_fx(module):
    maps, boxes = torch.randn(2, 3, 11, 13), ordinary_rois(6)
    graph = torch.fx.symbolic_trace(module)
    assert [node.op for node in graph.graph.nodes].count("call_function") == 1
    assert torch.equal(graph(maps, boxes), module(maps, boxes))
