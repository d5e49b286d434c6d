"""Combine four training images to one: mosaic (YOLOv4, arXiv 2004.10934, section 3.3)."""

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from detlite.data.datasets.coco import Target
from detlite.structures.masks.editing import place_masks

from .crop import BOX_FIELDS, Color, concat_targets, crop, random_start


def make_mosaic(
    parts: Sequence[tuple[Tensor, Target]], size: tuple[int, int], fill: Color
) -> tuple[Tensor, Target]:
    """Make an image of `size` from windows of four images, which meet at a random center.

    The center is in the middle half of both sides. Images are not resized. A larger image shows a
    random window; a smaller one touches the center and is padded on the outside. Objects are cut
    and dropped as by `crop_target`. `parts` are images [C, H, W] of one dtype and any sizes for
    the top left, top right, bottom left and bottom right.
    """
    # The center is at least one pixel from the top and left, so that the first part is visible.
    limits = ((max(side // 4, 1), max(3 * side // 4, 1)) for side in size)
    row, column = (int(torch.randint(low, high + 1, ())) for low, high in limits)
    rows, columns = (0, row, size[0]), (0, column, size[1])
    mosaic = parts[0][0].new_empty(len(fill), *size)
    targets = []
    for (below, right), (image, target) in zip(product((0, 1), (0, 1)), parts, strict=True):
        top, bottom = rows[below : below + 2]
        left, end = columns[right : right + 2]
        quarter = bottom - top, end - left
        if 0 in quarter:
            continue
        start_y = _window_start(image.shape[1], quarter[0], after=bool(below))
        start_x = _window_start(image.shape[2], quarter[1], after=bool(right))
        part, target = crop(image, target, (start_y, start_x, *quarter), fill)
        mosaic[:, top:bottom, left:end] = part
        targets.append(_place(target, quarter, top, left, size))
    return mosaic, concat_targets(targets)


def _window_start(length: int, size: int, after: bool) -> int:
    """Draw the start of the window of an image in a quarter before or after the center."""
    return random_start(length, size) + (0 if after else min(length - size, 0))


def _place(
    target: Target, size: tuple[int, int], top: int, left: int, whole: tuple[int, int]
) -> Target:
    """Return the target of an image of `size` at (top, left) of a larger one, see `place_masks`."""
    shift = torch.tensor([left, top, left, top])
    placed = {name: target[name] + shift for name in target.keys() & BOX_FIELDS}
    if "keypoints" in target:
        placed["keypoints"] = target["keypoints"] + torch.tensor([left, top, 0])
    if "masks" in target:
        placed["masks"] = place_masks(target["masks"], size, top, left, whole)
    return {**target, **placed}
