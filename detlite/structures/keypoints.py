"""Keypoints: heat maps over a box, and back (Mask R-CNN, section 5).

Keypoints are float [..., 3] of (x, y, visibility), x and y in pixels of the image; visibility is
COCO's: 0 not labelled, 1 hidden, 2 visible.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

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
    cell[xy == high.expand_as(xy)] = resolution - 1  # the far edge belongs to the last cell
    valid = ((cell >= 0) & (cell < resolution)).all(-1) & (keypoints[..., 2] > 0)
    return (cell[..., 1] * resolution + cell[..., 0]) * valid, valid


def from_heatmaps(maps: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """The highest point of each map, enlarged to its box by bicubic interpolation.

    Args:
        maps: [R, P, M, M] logits.
        boxes: [R, 4] xyxy.

    Returns:
        Keypoints float32 [R, P, 3] of visibility 1, and the logits [R, P] there.
    """
    count, points = maps.shape[:2]
    keypoints = maps.new_ones((count, points, 3))
    scores = maps.new_zeros((count, points))
    sides = (boxes[:, 2:] - boxes[:, :2]).clamp(min=1)
    # Maps are enlarged one by one: boxes differ in size, and all at once take too much memory.
    for index, (width, height) in enumerate(sides.ceil().int().tolist()):
        enlarged = F.interpolate(
            maps[index, None], size=(height, width), mode="bicubic", align_corners=False
        )[0]
        scores[index], highest = enlarged.flatten(1).max(dim=1)
        column, row = highest % width, highest // width
        cells = torch.stack([column, row], dim=1) + 0.5
        pixel = sides[index] / sides[index].ceil()
        keypoints[index, :, :2] = boxes[index, :2] + cells * pixel
    return keypoints, scores


def flip_order(names: Sequence[str]) -> list[int]:
    """Which keypoint takes each one's place in a mirrored picture, by names with left and right."""
    places = {name: index for index, name in enumerate(names)}
    swap = {"left": "right", "right": "left"}

    def mirrored(name: str) -> str:
        for side, other in swap.items():
            if side in name:
                return name.replace(side, other)
        return name

    return [places.get(mirrored(name), index) for index, name in enumerate(names)]
