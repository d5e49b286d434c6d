"""Cases of RoIAlign and RoIPool on one feature map, and of RoIAlign on a pyramid."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence

import torch
import torchvision
from torch import Tensor
from torch.nn import functional as F

from detlite import ops

from .case import IMAGE, LEVELS, Case, random_boxes

ROIS = 1000
CHANNELS = 256


def pool_cases(device: str) -> Iterator[Case]:
    """Yield cases of RoIAlign and RoIPool of 1000 boxes of 12 to 112 pixels at stride 4."""
    features = torch.randn(1, CHANNELS, *LEVELS[4], device=device)
    channels_last = features.contiguous(memory_format=torch.channels_last)
    rois = F.pad(random_boxes(ROIS, 12, 112, device), (1, 0))  # image index 0

    def case(name: str, operator: str, x: Tensor, size: int, *options: object) -> Case:
        run, reference = getattr(ops, operator), getattr(torchvision.ops, operator)
        args = (rois, size, 1 / 4, *options)
        return Case(
            name,
            lambda: run(x, *args),
            lambda: reference(features, *args),
            _traffic(size, x),
            str(x.dtype).removeprefix("torch."),
        )

    yield case("roi_align_7_s2_cl", "roi_align", channels_last, 7, 2, False)
    yield case("roi_align_7_s2", "roi_align", features, 7, 2, False)
    yield case("roi_align_14_s0_cl", "roi_align", channels_last, 14, 0, True)
    yield case("roi_align_7_s2_cl_bf16", "roi_align", channels_last.bfloat16(), 7, 2, False)

    args = (rois, 7, 1 / 4, 2, False)
    x = channels_last.clone().requires_grad_()
    reference_x = features.clone().requires_grad_()
    grad = torch.randn(ROIS, CHANNELS, 7, 7, device=device)
    grad_last = grad.contiguous(memory_format=torch.channels_last)
    yield Case(
        "roi_align_7_s2_cl_train",
        lambda: torch.autograd.grad(ops.roi_align(x, *args), x, grad_last),
        lambda: torch.autograd.grad(
            torchvision.ops.roi_align(reference_x, *args), reference_x, grad
        ),
        2 * _traffic(7, features),
    )
    yield case("roi_pool_7_cl", "roi_pool", channels_last, 7)


def pyramid_cases(device: str) -> Iterator[Case]:
    """Yield cases of RoIAlign of 1000 boxes of 16 to 800 pixels on five levels."""
    maps = [torch.randn(1, CHANNELS, *size, device=device) for size in LEVELS.values()]
    channels_last = [x.contiguous(memory_format=torch.channels_last) for x in maps]
    boxes = random_boxes(ROIS, 16, 800, device)
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
    yield case("pyramid_roi_align_7_cl", channels_last)


def _traffic(size: int, *maps: Tensor) -> int:
    """Return the bytes of the feature maps and of the pooled features."""
    return sum(x.nbytes for x in maps) + ROIS * CHANNELS * size**2 * maps[0].element_size()
