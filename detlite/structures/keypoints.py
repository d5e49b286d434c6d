"""Keypoints and the heat maps over a box that they are trained by (Mask R-CNN, section 5).

Keypoints are float [..., 3] of (x, y, visibility), x and y in pixels of the image; visibility is
COCO's: 0 not labelled, 1 hidden, 2 visible.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

# COCO gives keypoints as indices of pixels, but boxes and masks in continuous coordinates.
PIXEL_CENTRE = 0.5


def to_heatmap_cells(keypoints: Tensor, boxes: Tensor, resolution: int) -> tuple[Tensor, Tensor]:
    """The cell of its box's heat map that each keypoint lies in.

    Args:
        keypoints: [R, P, 3].
        boxes: [R, 4] xyxy.
        resolution: M, cells on a side.

    Returns:
        int64 [R, P], row * M + column, and bool [R, P]: labelled and inside the box. Cells of the
        others are 0.
    """
    low, high = boxes[:, None, :2], boxes[:, None, 2:]
    xy = keypoints[..., :2]
    sides = (high - low).clamp(min=1e-6)  # what is infinite has no integer
    cell = ((xy - low) * (resolution / sides)).floor().long()
    cell = torch.where(xy == high, resolution - 1, cell)  # the far edge belongs to the last cell
    valid = ((cell >= 0) & (cell < resolution)).all(-1) & (keypoints[..., 2] > 0)
    return (cell[..., 1] * resolution + cell[..., 0]) * valid, valid


def flip_order(names: Sequence[str]) -> list[int]:
    """Which keypoint takes each one's place in a mirrored picture, by names with left and right."""
    places = {name: index for index, name in enumerate(names)}
    swap = {"left": "right", "right": "left"}
    mirrored = [re.sub("left|right", lambda side: swap[side[0]], name) for name in names]
    return [places.get(name, index) for index, name in enumerate(mirrored)]
