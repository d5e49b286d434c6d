"""Feature maps and boxes for the tests of RoIAlign and RoIPool."""

import math
from typing import Any

import pytest
import torch
import torchvision  # noqa: F401 (registers its operators)
from torch import Tensor

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
LAYOUTS = ["contiguous", "channels_last", "strided", "transposed", "cropped_channels_last"]
SCALES = [1 / 4, 1 / 8, 1 / 16, 1 / 32]  # of four levels
FORMS = [(2, False), (2, True), (-1, False), (0, True), (3, True)]  # sampling ratio, aligned
# For opcheck, which is slow.
OPCHECK_LAYOUTS = [
    "channels_last",
    *(pytest.param(layout, marks=pytest.mark.slow) for layout in ("contiguous", "transposed")),
]
# Half results may differ by one rounding of the float32 result.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 5e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def features(
    dtype: torch.dtype = torch.float32,
    layout: str = "contiguous",
    shape: tuple[int, int, int, int] = (2, 37, 11, 13),  # one channel block and a remainder
) -> Tensor:
    n, c, h, w = shape
    if layout == "contiguous":
        return torch.randn(shape).to(dtype)
    if layout == "channels_last":
        return torch.randn(shape).to(dtype).contiguous(memory_format=torch.channels_last)
    if layout == "strided":
        return torch.randn(n, 2 * c, h, w + 3).to(dtype)[:, ::2, :, 1 : w + 1]
    if layout == "transposed":
        return torch.randn(n, c, w, h).to(dtype).transpose(2, 3)
    if layout == "cropped_channels_last":
        wide = torch.randn(n, c, h + 2, w + 3).to(dtype)
        return wide.contiguous(memory_format=torch.channels_last)[:, :, 1 : h + 1, 2 : w + 2]
    raise ValueError(layout)


def two_maps(dtype: torch.dtype, layout: str, device: str) -> list[Tensor]:
    """Maps of two levels for the scales 1 / 4 and 1 / 8."""
    maps = [features(dtype, layout, (2, 37, *size)).to(device) for size in ((11, 13), (6, 7))]
    return [x.requires_grad_() for x in maps]


def ordinary_rois(count: int = 20, dtype: torch.dtype = torch.float32) -> Tensor:
    """Boxes of many sizes, partly off a map of about 11 x 13 cells at scale 1 / 4."""
    corner = torch.rand(count, 2) * 60 - 8
    size = torch.rand(count, 2) ** 2 * 50
    return torch.cat([torch.randint(0, 2, (count, 1)), corner, corner + size], 1).to(dtype)


def odd_rois(dtype: torch.dtype = torch.float32) -> Tensor:
    """Boxes of zero, negative and huge size, far outside of the map, and not finite."""
    nan, inf = math.nan, math.inf
    boxes = [
        [8, 8, 8, 8],
        [30, 30, 10, 10],
        [30, 5, 10, 25],
        [-1e4, -1e4, 1e4, 1e4],
        [-500, 3, 400, 9],
        [1e6, 1e6, 1e6 + 5, 1e6 + 5],
        [-900, -900, -800, -800],
        [-4, -4, -4, -4],
        [44, 52, 44, 52],
        [nan, 1, 20, 20],
        [1, 1, 20, nan],
        [nan, nan, nan, nan],
        [1, 1, inf, 20],
        [-inf, 1, 20, 20],
        [-inf, -inf, inf, inf],
        [inf, inf, inf, inf],
    ]
    return torch.tensor([[i % 2, *box] for i, box in enumerate(boxes)], dtype=dtype)


def pool_on_one_map(
    input: Tensor, rois: Tensor, scale: float, size: tuple[int, int], need_argmax: bool = True
) -> tuple[Tensor, Tensor]:
    """Return the results of the operator of RoIPool: the pooled features and their argmax."""
    levels = torch.zeros(len(rois), dtype=torch.int64, device=rois.device)
    return torch.ops.detlite.roi_pool_forward.maps(
        [input], rois, levels, [scale], *size, need_argmax
    )


def by_torchvision(name: str, input: Tensor, rois: Tensor, *arguments: Any) -> list[Tensor]:
    """Return the results of torchvision's operator, on the CPU and in the type of the RoIs.

    They are 0 for RoIs that are not finite, whose result torchvision does not define.
    """
    finite, rois = rois.cpu().isfinite().all(1), rois.cpu().nan_to_num(0, 0, 0)
    wide = input.detach().cpu().to(rois.dtype).contiguous()
    results = getattr(torch.ops.torchvision, name)(wide, rois, *arguments)
    results = [results] if isinstance(results, Tensor) else results
    return [x * finite[:, None, None, None] for x in results]
