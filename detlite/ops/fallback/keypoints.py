"""Keypoints from heat maps by PyTorch's bicubic interpolation, one box at a time."""

import torch
from torch import Tensor
from torch.nn import functional as F

from .checks import check, check_floating, check_same_device, check_shape

_MAX_CELLS = 1 << 10
_MAX_PIXELS = 1 << 12
# Pixels of enlarged maps at a time: 64 MB.
_MAX_ENLARGED = 1 << 24


def heatmap_peaks(maps: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Implement `heatmap_peaks`."""
    _check(maps, boxes)
    maps, boxes = maps.float(), boxes.float()
    low = boxes[:, :2]
    sides = boxes[:, 2:] - low
    sides = torch.where(sides < 1, 1, sides)
    pixels = torch.where(sides.isfinite(), sides.ceil().clamp(max=_MAX_PIXELS), 1)
    finite = maps.isfinite().flatten(2).all(dim=2)
    scores, place = torch.zeros_like(finite, dtype=maps.dtype), torch.zeros_like(finite).long()
    for box, (width, height) in enumerate(pixels.long().tolist()):
        step = max(1, _MAX_ENLARGED // (width * height))
        for start in range(0, maps.shape[1], step):
            part = maps[box, None, start : start + step]
            enlarged = F.interpolate(part, size=(height, width), mode="bicubic")[0].flatten(1)
            own = slice(start, start + step)
            scores[box, own], place[box, own] = enlarged.max(dim=1)
    scores, place = torch.where(finite, scores, torch.nan), torch.where(finite, place, 0)
    width = pixels[:, :1].long()
    pixel = torch.stack([place % width, place // width], dim=2)
    xy = low[:, None] + (pixel + 0.5) * (sides / pixels)[:, None]
    return torch.cat([xy, torch.ones_like(xy[..., :1])], dim=2), scores


def _check(maps: Tensor, boxes: Tensor) -> None:
    op, shape = "heatmap_peaks", list(maps.shape)
    check(len(shape) == 4, f"{op}: maps must have shape [R, N, M, M], got {shape}")
    check(
        all(1 <= side <= _MAX_CELLS for side in shape[2:]),
        f"{op}: maps must have sides from 1 to {_MAX_CELLS}, got {shape}",
    )
    check_shape(op, "boxes", boxes, [shape[0], 4], ", one for each of maps")
    check_floating(op, "maps", maps)
    check_floating(op, "boxes", boxes)
    check_same_device(op, maps, boxes=boxes)
