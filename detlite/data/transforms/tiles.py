"""Overlapping tiles of large images."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from detlite.data.datasets.coco import Target
from detlite.structures import boxes as box_ops

from .targets import Window, crop, select_objects

OVERLAP = 0.2  # of neighbors, as a fraction of the side: small objects are complete in some tile
_MIN_VISIBLE = 0.3  # fraction of an object's box that must be inside the tile to train on it
_MIN_SHOWN = 0.5  # of a box, in some tile; the whole image trains the other objects


def tile_windows(size: tuple[int, int], side: int, overlap: float = OVERLAP) -> list[Window]:
    """Return evenly spaced tiles of an image of (height, width), row by row.

    A smaller image has smaller tiles. `overlap` is the minimum overlap of neighbors as a fraction
    of the side; an object smaller than it is complete in at least one tile.
    """
    rows, columns = ([*_starts(length, side, overlap)] for length in size)
    height, width = (min(side, length) for length in size)
    return [(top, left, height, width) for top in rows for left in columns]


def _starts(length: int, side: int, overlap: float) -> list[int]:
    free = max(0, length - side)
    steps = math.ceil(free / max(1, int(side * (1 - overlap))))
    return [round(step * free / max(1, steps)) for step in range(steps + 1)]


@dataclass(frozen=True)
class TrainingTiles:
    """Cuts training tiles, each shifted randomly by up to a quarter of the overlap.

    An object becomes an ignored region if less than 30 % of its box is inside the tile. Other boxes
    are reduced to the visible part. Objects of which no tile shows half are trained in the whole
    image, which is a further tile with all other objects as ignored regions.
    """

    side: int
    overlap: float = OVERLAP

    def count(self, size: tuple[int, int], boxes: Tensor | None = None) -> int:
        """Return the number of tiles of an image of (height, width) with these objects."""
        is_added = boxes is not None and bool(self.exceeding(boxes, size).any())
        return len(tile_windows(size, self.side, self.overlap)) + is_added

    def exceeding(self, boxes: Tensor, size: tuple[int, int]) -> Tensor:
        """Return bool [N], True for boxes [N, 4] xyxy that no tile of the image shows half of."""
        shown = torch.ones(len(boxes))
        for axis, length in ((0, size[1]), (1, size[0])):  # tiles are a grid
            starts = torch.tensor([*_starts(length, self.side, self.overlap)])[:, None]
            low, high = boxes[:, axis], boxes[:, axis + 2]
            inside = torch.minimum(high, starts + self.side) - torch.maximum(low, starts)
            shown *= inside.clamp(min=0).amax(0) / (high - low)
        return shown < _MIN_SHOWN

    def cut(self, image: Tensor, target: Target, number: int) -> tuple[Tensor, Target]:
        """Return tile `number`, modulo their number, of an image [C, H, W] with its target."""
        image_height, image_width = image.shape[1:]
        windows = tile_windows((image_height, image_width), self.side, self.overlap)
        boxes = target["boxes"]
        number %= self.count((image_height, image_width), boxes)
        if number == len(windows):
            hidden = ~self.exceeding(boxes, (image_height, image_width))
            return image, _ignore(target, hidden) | {"size": (image_height, image_width)}
        top, left, height, width = windows[number]
        margin = int(self.side * self.overlap / 4)
        down, right = torch.randint(-margin, margin + 1, (2,)).tolist()
        top = min(max(top + down, 0), image_height - height)
        left = min(max(left + right, 0), image_width - width)
        corner = torch.tensor([left, top, left, top])
        visible = box_ops.clip(boxes - corner, (height, width))
        target = _ignore(target, box_ops.area(visible) < _MIN_VISIBLE * box_ops.area(boxes))
        tile, target = crop(image, target, (top, left, height, width))
        return tile, target | {"size": (height, width)}


def _ignore(target: Target, hidden: Tensor) -> Target:
    """Turn the objects for which `hidden`, bool [N], is True into ignored regions."""
    boxes = target["boxes"]
    ignored = target.get("ignored_boxes", boxes[:0])
    kept = dict(select_objects(target, ~hidden))
    return kept | {"ignored_boxes": torch.cat([ignored, boxes[hidden]])}
