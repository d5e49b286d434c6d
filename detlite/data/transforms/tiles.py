"""Overlapping tiles of large images."""

import math

import torch
from torch import Tensor

from detlite.data.datasets.coco import Target
from detlite.structures import boxes as box_ops

from .crop import crop_image, crop_target
from .targets import select_objects

Window = tuple[int, int, int, int]  # top, left, height, width
_MIN_VISIBLE = 0.3  # fraction of the box of an object that a tile must show to train on it


def tile_windows(size: tuple[int, int], side: int, overlap: float) -> list[Window]:
    """Return evenly spaced tiles of an image of (height, width), row by row.

    Args:
        size: of the image.
        side: of a tile; a smaller image has smaller tiles.
        overlap: minimum overlap of neighbors as a fraction of the side. A smaller object is
            complete in at least one tile.
    """
    rows, columns = ([*_starts(length, side, overlap)] for length in size)
    height, width = (min(side, length) for length in size)
    return [(top, left, height, width) for top in rows for left in columns]


def _starts(length: int, side: int, overlap: float) -> list[int]:
    free = max(0, length - side)
    steps = math.ceil(free / max(1, int(side * (1 - overlap))))
    return [round(step * free / max(1, steps)) for step in range(steps + 1)]


class TrainingTiles:
    """Cuts the tiles that a model is trained on, each shifted randomly by up to a quarter of the
    overlap.

    An object becomes an ignored region if the tile shows less than 30 % of its box. Others get the
    box around their visible part.
    """

    def __init__(self, side: int, overlap: float) -> None:
        self._side, self._overlap = side, overlap

    def count(self, size: tuple[int, int]) -> int:
        """Return the number of tiles of an image of (height, width)."""
        return len(tile_windows(size, self._side, self._overlap))

    def cut(self, image: Tensor, target: Target, number: int) -> tuple[Tensor, Target]:
        """Return tile `number`, modulo their number, of an image [C, H, W], with its target."""
        size = image.shape[1], image.shape[2]
        windows = tile_windows(size, self._side, self._overlap)
        top, left, height, width = windows[number % len(windows)]
        margin = int(self._side * self._overlap / 4)
        shifts = torch.randint(-margin, margin + 1, (2,)).tolist()
        top, left = (
            min(max(start + shift, 0), length - part)
            for start, shift, length, part in zip(
                (top, left), shifts, size, (height, width), strict=True
            )
        )
        boxes = target["boxes"]
        corner = torch.tensor([left, top, left, top])
        visible = box_ops.clip(boxes - corner, (height, width))
        hidden = box_ops.area(visible) < _MIN_VISIBLE * box_ops.area(boxes)
        target = dict(select_objects(target, ~hidden))
        ignored = target.get("ignored_boxes", boxes[:0])
        target["ignored_boxes"] = torch.cat([ignored, boxes[hidden]])
        window = top, left, height, width
        target = crop_target(target, *window) | {"size": (height, width)}
        return crop_image(image, *window, ()), target
