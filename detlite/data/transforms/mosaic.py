"""Four training images as one: mosaic (YOLOv4, arXiv 2004.10934, section 3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from detlite.data.datasets.coco import Target
from detlite.structures.masks.editing import place_masks

from .crop import Colour, crop_image, crop_target, join_targets, random_start


def make_mosaic(
    parts: Sequence[tuple[Tensor, Target]], size: tuple[int, int], fill: Colour
) -> tuple[Tensor, Target]:
    """An image whose quarters, around a random centre, show a window of an image each.

    The centre lies within the middle half of both sides. No image is resized: of one that is larger
    than its quarter a random window is shown, one that is smaller touches the centre and is padded
    outside. Objects are cut, and slivers dropped, as by `crop_target`.

    Args:
        parts: four images [3, H, W] of one type, uint8 or float in 0..1, of any sizes, with their
            targets: above left, above right, below left, below right.
        size: (height, width) of the mosaic in pixels.
        fill: what is padded with.

    Returns:
        The image, and a target with the objects of all; what else it has is the first one's.
    """
    # Above and to the left is a pixel at least: the first part is always seen.
    row, column = (_between(max(side // 4, 1), max(3 * side // 4, 1)) for side in size)
    edges = (0, row, size[0]), (0, column, size[1])
    mosaic = parts[0][0].new_empty(3, *size)
    targets = []
    for (below, right), (image, target) in zip(product((0, 1), (0, 1)), parts, strict=True):
        (top, bottom), (left, end) = edges[0][below : below + 2], edges[1][right : right + 2]
        own = bottom - top, end - left
        if 0 in own:
            continue
        window = _start(image.shape[1], own[0], below), _start(image.shape[2], own[1], right), *own
        mosaic[:, top:bottom, left:end] = crop_image(image, *window, fill)
        targets.append(_placed(crop_target(target, *window), own, top, left, size))
    return mosaic, join_targets(targets)


def _between(low: int, high: int) -> int:
    return int(torch.randint(low, high + 1, ()))


def _start(length: int, size: int, after: int) -> int:
    """Where an image's window begins along a side, in a quarter before or after the centre."""
    return random_start(length, size) + (0 if after else min(length - size, 0))


def _placed(
    target: Target, size: tuple[int, int], top: int, left: int, whole: tuple[int, int]
) -> Target:
    """The target of an image of `size` that becomes a part of a larger one, see `place_masks`."""
    shift = torch.tensor([left, top, left, top])
    placed = {name: target[name] + shift for name in target.keys() & {"boxes", "proposals"}}
    if "keypoints" in target:
        placed["keypoints"] = target["keypoints"] + torch.tensor([left, top, 0])
    if "masks" in target:
        placed["masks"] = place_masks(target["masks"], size, top, left, whole)
    return {**target, **placed}
