"""Keypoints and the heat map cells that they are trained on (Mask R-CNN, section 5).

Keypoints are float `[..., 3]` of (x, y, visibility) with x and y in pixels. Visibility is COCO's:
0 not labelled, 1 hidden, 2 visible.
"""

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from .boxes import Sizes, width_height

# COCO stores keypoints as pixel indices, but boxes and masks in continuous coordinates.
PIXEL_CENTER = 0.5


def to_heatmap_cells(keypoints: Tensor, boxes: Tensor, resolution: int) -> tuple[Tensor, Tensor]:
    """Return the cell of its box's M x M heat map that contains each of the keypoints `[R, P, 3]`.

    Returns:
        The cells int64 `[R, P]` as row * M + column, and bool `[R, P]`: the keypoint is labelled
        and inside the box. The cell of other keypoints is 0.
    """
    low, high = boxes[:, None, :2], boxes[:, None, 2:]
    xy = keypoints[..., :2]
    sides = (high - low).clamp(min=1e-6)  # infinity has no integer
    cell = ((xy - low) * (resolution / sides)).floor().long()
    cell = torch.where(xy == high, resolution - 1, cell)  # the far edge belongs to the last cell
    valid = ((cell >= 0) & (cell < resolution)).all(-1) & (keypoints[..., 2] > 0)
    return (cell[..., 1] * resolution + cell[..., 0]) * valid, valid


def rescale_keypoints(keypoints: Tensor, from_size: Sizes, to_size: Sizes) -> Tensor:
    """Scale keypoints `[..., N, P, 3]` of an image to another size of the same image.

    Sizes are (height, width) of one image, or int `[B, 2]` of a batch.
    """
    factors = width_height(keypoints, to_size) / width_height(keypoints, from_size)
    if factors.dim() > 1:  # of a batch: keypoints have one dimension more than boxes
        factors = factors.unsqueeze(-2)
    return torch.cat([keypoints[..., :2] * factors, keypoints[..., 2:]], dim=-1)


def flip_order(names: Sequence[str]) -> list[int]:
    """Return for each keypoint the index of the one that replaces it in a mirrored image.

    Names that differ only in "left" and "right" are pairs.
    """
    indices = {name: index for index, name in enumerate(names)}
    swap = {"left": "right", "right": "left"}
    mirrored = [re.sub("left|right", lambda side: swap[side[0]], name) for name in names]
    return [indices.get(name, index) for index, name in enumerate(mirrored)]
