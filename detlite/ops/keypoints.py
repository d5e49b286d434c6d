"""Keypoint positions from heat maps."""

import torch
from torch import Tensor
from torch.nn import functional as F

from .checks import FLOATING, check, check_tensors
from .dispatch import operator

_MAX_CELLS = 1 << 10
_MAX_PIXELS = 1 << 12


def heatmap_peaks(maps: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Find the highest point of each heat map, resized to its box by bicubic interpolation.

    The box is divided into pixels, its sides rounded up and at least one; the center of the highest
    pixel is the keypoint (Mask R-CNN, section 5). The interpolation equals torch's
    `interpolate(mode="bicubic", align_corners=False)` up to rounding. The first of equal pixels
    wins, in row-major order. Shapes are fixed, no resized map is stored, and no gradient flows.

    Sides of more than 4096 pixels are divided into 4096. A NaN or infinite side is one pixel, and
    its keypoint is NaN or infinite. A map with a NaN or infinite value has the score NaN, and its
    keypoint is the first pixel.

    Args:
        maps: `[R, N, M, M]` logits, any floating type; computes in float32. M is at most 1024.
        boxes: `[R, 4]` of (x1, y1, x2, y2).

    Returns:
        Keypoints float32 `[R, N, 3]` of (x, y, visibility 1), and their logits float32 `[R, N]`.
    """
    return torch.ops.detlite.heatmap_peaks(maps.detach(), boxes.detach())


def _shapes(maps: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    count, points = maps.shape[:2]
    return (
        maps.new_empty((count, points, 3), dtype=torch.float32),
        maps.new_empty((count, points), dtype=torch.float32),
    )


@operator("heatmap_peaks", "any", _shapes)
def _heatmap_peaks(maps: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Enlarge one map at a time by torch's bicubic interpolation."""
    op, shape = "heatmap_peaks", [len(maps), 4]
    check_tensors(op, maps=(maps, [*"RNMM"], FLOATING), boxes=(boxes, shape, FLOATING))
    cells = list(maps.shape[2:])
    check(
        all(1 <= side <= _MAX_CELLS for side in cells),
        f"{op}: maps must have sides from 1 to {_MAX_CELLS}, got {cells}",
    )
    maps, boxes = maps.float(), boxes.float()
    low = boxes[:, :2]
    sides = boxes[:, 2:] - low
    sides = torch.where(sides < 1, 1, sides)
    pixels = torch.where(sides.isfinite(), sides.ceil().clamp(max=_MAX_PIXELS), 1)
    finite = maps.isfinite().flatten(2).all(dim=2)
    scores, index = torch.zeros_like(finite, dtype=maps.dtype), torch.zeros_like(finite).long()
    for box, (width, height) in enumerate(pixels.long().tolist()):
        for point, one in enumerate(maps[box]):
            enlarged = F.interpolate(one[None, None], size=(height, width), mode="bicubic")
            scores[box, point], index[box, point] = enlarged.flatten().max(dim=0)
    scores, index = torch.where(finite, scores, torch.nan), torch.where(finite, index, 0)
    width = pixels[:, :1].long()
    pixel = torch.stack([index % width, index // width], dim=2)
    xy = low[:, None] + (pixel + 0.5) * (sides / pixels)[:, None]
    return torch.cat([xy, torch.ones_like(xy[..., :1])], dim=2), scores
