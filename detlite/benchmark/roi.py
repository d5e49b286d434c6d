"""RoIAlign and RoIPool on one map, RoIAlign on a pyramid."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

import torch
import torchvision
from torch import Tensor

from .. import ops
from .case import Case, cases
from .inputs import CHANNELS, IMAGE, STRIDES, boxes_between, feature_maps, to_rois

ROIS = 1000


@cases
def align_cases(device: str) -> Iterator[Case]:
    """RoIAlign: 1000 boxes of 12 to 112 pixels on a map of stride 4."""
    (features,) = feature_maps(device, STRIDES[:1])
    last = features.contiguous(memory_format=torch.channels_last)
    half = last.bfloat16()
    rois = to_rois(boxes_between(ROIS, 12, 112, device))

    def case(name: str, x: Tensor, size: int, sampling: int, aligned: bool) -> Case:
        args = (rois, size, 1 / 4, sampling, aligned)
        return Case(
            name,
            str(x.dtype).removeprefix("torch."),
            lambda: ops.roi_align(x, *args),
            lambda: torchvision.ops.roi_align(features, *args),
            _bytes(x) + _pooled_bytes(size, x.element_size()),
        )

    yield case("roi_align_7_s2_cl", last, 7, 2, False)
    yield case("roi_align_7_s2", features, 7, 2, False)
    yield case("roi_align_14_s0_cl", last, 14, 0, True)
    yield case("roi_align_7_s2_cl_bf16", half, 7, 2, False)

    args = (rois, 7, 1 / 4, 2, False)
    ours = last.clone().requires_grad_()
    theirs = features.clone().requires_grad_()
    grad = torch.randn(ROIS, CHANNELS, 7, 7, device=device)
    grad_last = grad.contiguous(memory_format=torch.channels_last)
    yield Case(
        "roi_align_7_s2_cl_train",
        "float32",
        lambda: torch.autograd.grad(ops.roi_align(ours, *args), ours, grad_last),
        lambda: torch.autograd.grad(torchvision.ops.roi_align(theirs, *args), theirs, grad),
        2 * (_bytes(features) + _pooled_bytes(7, 4)),
    )


@cases
def pool_cases(device: str) -> Iterator[Case]:
    """RoIPool on the same."""
    (features,) = feature_maps(device, STRIDES[:1])
    last = features.contiguous(memory_format=torch.channels_last)
    args = (to_rois(boxes_between(ROIS, 12, 112, device)), 7, 1 / 4)
    yield Case(
        "roi_pool_7_cl",
        "float32",
        lambda: ops.roi_pool(last, *args),
        lambda: torchvision.ops.roi_pool(features, *args),
        _bytes(last) + _pooled_bytes(7, 4),
    )


@cases
def pyramid_cases(device: str) -> Iterator[Case]:
    """RoIAlign over five levels: 1000 boxes of 16 to 800 pixels."""
    maps = feature_maps(device)
    last = [x.contiguous(memory_format=torch.channels_last) for x in maps]
    boxes = boxes_between(ROIS, 16, 800, device)
    named = OrderedDict((str(level), x) for level, x in enumerate(maps))
    reference = torchvision.ops.MultiScaleRoIAlign(list(named), 7, 2)
    scales = [1 / s for s in STRIDES]

    def case(name: str, inputs: Sequence[Tensor]) -> Case:
        return Case(
            name,
            "float32",
            lambda: ops.pyramid_roi_align(inputs, [boxes], 7, scales, 2),
            lambda: reference(named, [boxes], [IMAGE]),
            _bytes(*maps) + _pooled_bytes(7, 4),
        )

    yield case("pyramid_roi_align_7", maps)
    yield case("pyramid_roi_align_7_cl", last)


def _bytes(*tensors: Tensor) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)


def _pooled_bytes(size: int, element_size: int) -> int:
    return ROIS * CHANNELS * size * size * element_size
