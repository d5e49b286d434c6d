"""Small test cases of every CUDA kernel, for barriers.py and for tools/gpu_check.py.

A case is a function with the decorator `case`. It returns an operator and its arguments on the CPU.
Gradients of arguments with `requires_grad` are compared too. A case should be small, because it
runs about a dozen times for every barrier it reaches, but large enough for threads and warps to do
different work and to repeat their loops.
"""

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from detlite import ops

Call = tuple[Callable[..., Any], list[Any]]
Case = Callable[[], Call]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def inputs(run: Case, device: str = "cpu", seed: int = 0) -> Call:
    """Return the operator of a case and its arguments on a device."""

    def to_device(value: Any) -> Any:
        if isinstance(value, list):
            return [to_device(item) for item in value]
        if isinstance(value, Tensor):
            return value.detach().to(device).requires_grad_(value.requires_grad)
        return value

    torch.manual_seed(seed)
    function, arguments = run()
    return function, to_device(arguments)


def results(function: Callable[..., Any], arguments: list[Any]) -> list[Tensor]:
    """Return the outputs of an operator and the gradients of its arguments with `requires_grad`."""
    output = function(*arguments)
    outputs = [output] if isinstance(output, Tensor) else list(output)
    flat = [x for value in arguments for x in (value if isinstance(value, list) else [value])]
    differentiable = [x for x in flat if isinstance(x, Tensor) and x.requires_grad]
    if not differentiable:
        return outputs
    numbers = torch.arange(outputs[0].numel(), device=outputs[0].device) % 7 - 3.0
    grad = numbers.view(outputs[0].shape).to(outputs[0].dtype)
    return [outputs[0].detach(), *torch.autograd.grad(outputs[0], differentiable, grad)]


def all_results() -> dict[str, list[Tensor]]:
    """Return the results of every case on the CPU by name."""
    os.environ.setdefault("CUDA_ON_CPU_SEED", "0")
    return {name: results(*inputs(run)) for name, run in CASES.items()}


def boxes(*shape: int, extent: float = 60.0) -> Tensor:
    corner = torch.rand(*shape, 2) * extent
    return torch.cat([corner, corner + torch.rand(*shape, 2) * 30], -1)


def rois(count: int, images: int) -> Tensor:
    """Return random RoIs. Some are padding."""
    return torch.cat([torch.randint(-1, images, (count, 1)).float(), boxes(count)], 1)


# ---- Boxes


@case
def nms() -> Call:
    return ops.nms, [boxes(300), torch.rand(300), 0.3]


@case
def nms_many_boxes() -> Call:
    return ops.nms, [boxes(2300, extent=400.0), torch.rand(2300), 0.3]


@case
def batched_nms() -> Call:
    return ops.batched_nms, [boxes(400), torch.rand(400), torch.randint(0, 3, (400,)), 0.4]


@case
def padded_nms() -> Call:
    groups, valid = torch.randint(0, 3, (2, 300)), torch.rand(2, 300) > 0.1
    return ops.padded_nms, [boxes(2, 300), torch.rand(2, 300), groups, valid, 0.5, 100]


@case
def match_boxes() -> Call:
    truth, candidates = boxes(2, 600, extent=200.0), boxes(300, extent=200.0)
    return ops.match_boxes, [truth, torch.rand(2, 600) > 0.1, candidates]


@case
def match_boxes_of_each_image() -> Call:
    truth, candidates = boxes(2, 600, extent=200.0), boxes(2, 300, extent=200.0)
    return ops.match_boxes, [truth, torch.rand(2, 600) > 0.1, candidates]


# ---- Features: more RoIs than a block has threads, and several images


@case
def roi_align() -> Call:
    maps = torch.randn(2, 9, 15, 16, requires_grad=True)
    return ops.roi_align, [maps, rois(300, 2), 3, 0.25, 2]


@case
def roi_align_channels_last() -> Call:
    maps = torch.randn(2, 16, 15, 16).contiguous(memory_format=torch.channels_last)
    return ops.roi_align, [maps.requires_grad_(), rois(150, 2), (2, 3), 0.25, 0, True]


@case
def roi_align_many_rois() -> Call:
    maps = torch.randn(2, 3, 8, 9, requires_grad=True)
    return ops.roi_align, [maps, rois(2000, 2), 2, 0.125, 2]


@case
def roi_align_half() -> Call:
    maps = torch.randn(3, 8, 15, 16).half().contiguous(memory_format=torch.channels_last)
    return ops.roi_align, [maps.requires_grad_(), rois(140, 3), 2, 0.25, 2]


@case
def pyramid_roi_align() -> Call:
    maps = [torch.randn(2, 5, 16 >> i, 16 >> i, requires_grad=True) for i in range(2)]
    return ops.pyramid_roi_align, [maps, [boxes(90), boxes(100)], 2, [0.25, 0.125], 2]


@case
def roi_align_several_chunks() -> Call:
    """More RoIs than a block compares per step: the first half is left, the second half right."""
    some = rois(640, 1)
    some[:, 0] = 0
    some[320:, 1::2] += 120
    maps = torch.randn(1, 66, 9, 50, requires_grad=True)
    return ops.roi_align, [maps, some, 1, 0.25, 1]


@case
def roi_pool() -> Call:
    maps = torch.randn(2, 9, 15, 16, requires_grad=True)
    return ops.roi_pool, [maps, rois(300, 2), 3, 0.25]


@case
def roi_pool_channels_last() -> Call:
    maps = torch.randn(2, 16, 15, 16).contiguous(memory_format=torch.channels_last)
    return ops.roi_pool, [maps.requires_grad_(), rois(150, 2), (2, 3), 0.25]


# ---- Losses, masks, keypoints


@case
def focal_loss() -> Call:
    logits = torch.randn(701, requires_grad=True)
    return ops.sigmoid_focal_loss, [logits, (torch.rand(701) > 0.9).float(), 0.25, 2.0, "sum"]


@case
def crop_masks() -> Call:
    corners, polygons = 300, 3
    angles = torch.linspace(0, 6, corners)
    radii = 40 * torch.rand(polygons, corners, 1) + 5
    xy = 50 + radii * torch.stack([angles.cos(), angles.sin()], 1)
    pieces = 2 * corners * torch.arange(polygons + 1)
    masks = [xy.double().view(-1), pieces, torch.tensor([0, polygons]), torch.zeros(1, 6).long()]
    around = torch.tensor([[5.0, 0, 90, 100], [20, 10, 60, 50]])
    return ops.crop_masks, [*masks, torch.tensor([0, -1]), around, 70, False]


@case
def heatmap_peaks() -> Call:
    maps = torch.randn(4, 3, 20, 20)
    maps[0, 1, 19, 19] = torch.nan
    return ops.heatmap_peaks, [maps, boxes(4)]
