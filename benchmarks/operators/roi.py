"""RoIAlign and RoIPool on one map, RoIAlign on a pyramid."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

import torch
import torchvision
from torch import Tensor
from torch.nn import functional as F

from detlite import ops

from .case import IMAGE, LEVELS, Case, boxes_between

ROIS = 1000
CHANNELS = 256


def pool_cases(device: str) -> Iterator[Case]:
    """RoIAlign and RoIPool: 1000 boxes of 12 to 112 pixels on a map of stride 4."""
    features = torch.randn(1, CHANNELS, *LEVELS[4], device=device)
    last = features.contiguous(memory_format=torch.channels_last)
    rois = F.pad(boxes_between(ROIS, 12, 112, device), (1, 0))  # of image 0

    def case(name: str, operator: str, x: Tensor, size: int, *options: object) -> Case:
        ours, theirs = getattr(ops, operator), getattr(torchvision.ops, operator)
        args = (rois, size, 1 / 4, *options)
        return Case(
            name,
            lambda: ours(x, *args),
            lambda: theirs(features, *args),
            _traffic(size, x),
            str(x.dtype).removeprefix("torch."),
        )

    yield case("roi_align_7_s2_cl", "roi_align", last, 7, 2, False)
    yield case("roi_align_7_s2", "roi_align", features, 7, 2, False)
    yield case("roi_align_14_s0_cl", "roi_align", last, 14, 0, True)
    yield case("roi_align_7_s2_cl_bf16", "roi_align", last.bfloat16(), 7, 2, False)

    args = (rois, 7, 1 / 4, 2, False)
    ours = last.clone().requires_grad_()
    theirs = features.clone().requires_grad_()
    grad = torch.randn(ROIS, CHANNELS, 7, 7, device=device)
    grad_last = grad.contiguous(memory_format=torch.channels_last)
    yield Case(
        "roi_align_7_s2_cl_train",
        lambda: torch.autograd.grad(ops.roi_align(ours, *args), ours, grad_last),
        lambda: torch.autograd.grad(torchvision.ops.roi_align(theirs, *args), theirs, grad),
        2 * _traffic(7, features),
    )
    yield case("roi_pool_7_cl", "roi_pool", last, 7)


def pyramid_cases(device: str) -> Iterator[Case]:
    """RoIAlign over five levels: 1000 boxes of 16 to 800 pixels."""
    maps = [torch.randn(1, CHANNELS, *size, device=device) for size in LEVELS.values()]
    last = [x.contiguous(memory_format=torch.channels_last) for x in maps]
    boxes = boxes_between(ROIS, 16, 800, device)
    named = OrderedDict((str(level), x) for level, x in enumerate(maps))
    reference = torchvision.ops.MultiScaleRoIAlign(list(named), 7, 2)
    scales = [1 / stride for stride in LEVELS]

    def case(name: str, inputs: Sequence[Tensor]) -> Case:
        return Case(
            name,
            lambda: ops.pyramid_roi_align(inputs, [boxes], 7, scales, 2),
            lambda: reference(named, [boxes], [IMAGE]),
            _traffic(7, *maps),
        )

    yield case("pyramid_roi_align_7", maps)
    yield case("pyramid_roi_align_7_cl", last)


def _traffic(size: int, *maps: Tensor) -> int:
    """Bytes of the maps and of what is pooled from them."""
    return sum(x.nbytes for x in maps) + ROIS * CHANNELS * size**2 * maps[0].element_size()
