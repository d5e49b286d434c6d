"""Keypoints from heat maps."""

from __future__ import annotations

import torch
from torch import Tensor

from detlite import _C  # noqa: F401  (loads the kernels)


def heatmap_peaks(maps: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """The highest point of each map, enlarged to its box by bicubic interpolation.

    The box is cut into pixels, as many as it is long and wide, rounded up, and at least one; the
    highest pixel's centre is the keypoint (Mask R-CNN, section 5). The interpolation is torch's
    `interpolate(mode="bicubic", align_corners=False)` up to rounding. Of equal pixels the first
    one wins, row by row. Shapes are fixed, no enlarged map is held, and no gradient flows.

    A side of more than 4096 pixels is cut into 4096. A side that is NaN or infinite is one pixel,
    and the keypoint there is NaN or infinite. A map with a value that is NaN or infinite has the
    score NaN, and its keypoint is the first pixel.

    Args:
        maps: `[R, N, M, M]` logits of any floating type, computed with in float32; M up to 1024.
        boxes: `[R, 4]` of (x1, y1, x2, y2).

    Returns:
        Keypoints float32 `[R, N, 3]` of (x, y, visibility 1), and the logits float32 `[R, N]`
        there.

    Raises:
        RuntimeError: a shape, type or device is wrong; the message names the argument.
    """
    return torch.ops.detlite.heatmap_peaks(maps.detach(), boxes.detach())


@torch.library.register_fake("detlite::heatmap_peaks")
def _(maps: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    count, points = maps.shape[:2]
    return (
        maps.new_empty((count, points, 3), dtype=torch.float32),
        maps.new_empty((count, points), dtype=torch.float32),
    )
