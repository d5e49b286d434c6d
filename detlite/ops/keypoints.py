"""Keypoint positions from heat maps."""

import torch
from torch import Tensor

from .dispatch import declare


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


declare("heatmap_peaks", "keypoints.heatmap_peaks", "any", _shapes)
