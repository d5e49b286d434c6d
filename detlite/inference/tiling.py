"""Large pictures: cut into overlapping tiles, and what is found in them joined.

As in SAHI, slicing aided hyper inference (Akyon et al., ICIP 2022,
https://arxiv.org/abs/2202.06934), each tile is a picture to the model, and the whole picture is
looked at too, for objects larger than a tile. `joining.py` makes one set of detections of all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from yacs.config import CfgNode

from detlite.config import ConfigError
from detlite.conventions import Convention
from detlite.data.transforms.resize import resize_shortest
from detlite.modeling.detection_model import DetectionModel
from detlite.structures import boxes as box_ops
from detlite.structures.instances import Detections
from detlite.structures.keypoints import rescale_keypoints

from .tile_merging import Tile, join
from .tta import AugmentedDetector, View, build_views, size_of


@dataclass(frozen=True)
class Tiling:
    """How pictures are cut.

    Attributes:
        side: of a tile in pixels of the picture, which is then resized as a picture is.
        overlap: of neighbours, as a part of the side, at least. An object that is smaller than the
            overlap is whole in some tile.
        batch: the most tiles in one call of the model.
    """

    side: int
    overlap: float = 0.2
    batch: int = 8

    def tiles(self, size: tuple[int, int]) -> list[Tile]:
        """The tiles of a picture of a size (height, width), evenly spread, row by row."""
        height, width = size
        return [
            Tile(x, y, min(x + self.side, width), min(y + self.side, height))
            for y in self._starts(height)
            for x in self._starts(width)
        ]

    def _starts(self, length: int) -> list[int]:
        free = max(0, length - self.side)
        steps = math.ceil(free / max(1, int(self.side * (1 - self.overlap))))
        return [round(step * free / max(1, steps)) for step in range(steps + 1)]


class TiledDetector:
    """`DetectionModel.detect` over tiles of each picture, and over the whole of it.

    Args:
        model: a detector in evaluation mode, exported ones too.
        tiling: how pictures are cut; one that fits into a tile is looked at once.
        view: the size at which a tile and the whole picture are shown to the model.
        augmented: looks at each tile in several views instead.

    Raises:
        ConfigError: the model takes proposals, which are of whole pictures.
    """

    def __init__(
        self,
        model: DetectionModel,
        tiling: Tiling,
        view: View,
        augmented: AugmentedDetector | None = None,
    ) -> None:
        if model.takes_proposals:
            raise ConfigError("TEST.TILE must be 0: a Fast R-CNN's proposals are of whole pictures")
        self.model = model
        self.tiling = tiling
        self.view = view
        self.augmented = augmented

    @torch.no_grad()
    def detect(
        self,
        pictures: Sequence[Tensor],
        proposals: Sequence[Tensor] | None = None,
        min_score: float = 0.0,
    ) -> list[Detections]:
        """Detections of pictures uint8 [3, H, W], each in its own frame, as `DetectionModel.detect`.

        DETECTIONS_PER_IMG holds for each tile, not for their picture.
        """
        return [self._detect(picture, min_score) for picture in pictures]

    def _detect(self, picture: Tensor, min_score: float) -> Detections:
        height, width = size = size_of(picture)
        whole = [Tile(0, 0, width, height)]
        tiles = self.tiling.tiles(size)
        found = self._in_frames([picture], min_score)
        if len(tiles) == 1:
            return found[0]
        for start in range(0, len(tiles), self.tiling.batch):
            batch = tiles[start : start + self.tiling.batch]
            seen = self._in_frames([tile.of(picture) for tile in batch], min_score)
            found += [_moved(one, tile) for one, tile in zip(seen, batch, strict=True)]
        rule = self.model.postprocess.suppression
        iou_thresh = rule.views_iou_thresh or rule.iou_thresh
        return join([*whole, *tiles], found, size, iou_thresh, self.model.convention)

    def _in_frames(self, pictures: list[Tensor], min_score: float) -> list[Detections]:
        """Detections of a batch of pictures, each in its own frame."""
        if self.augmented is not None:
            return self.augmented.detect(pictures, None, min_score)
        convention, sizes = self.model.convention, (self.view.min_size, self.view.max_size)
        images = [resize_shortest(picture, *sizes, convention.resize) for picture in pictures]
        found = self.model.detect(images, None, min_score)
        return [
            _rescaled(one, size_of(image), size_of(picture), convention)
            for one, image, picture in zip(found, images, pictures, strict=True)
        ]


def _moved(found: Detections, tile: Tile) -> Detections:
    """Detections of a tile in the frame of the picture."""
    corner = found.boxes.new_tensor([tile.x1, tile.y1])
    moved = replace(found, boxes=found.boxes + corner.repeat(2))
    if found.keypoints is None:
        return moved
    points = torch.cat([found.keypoints[..., :2] + corner, found.keypoints[..., 2:]], dim=-1)
    return replace(moved, keypoints=points)


def _rescaled(
    found: Detections, net_size: tuple[int, int], size: tuple[int, int], convention: Convention
) -> Detections:
    """Detections of an image in the frame of the picture that it shows."""
    found = replace(found, boxes=box_ops.rescale(found.boxes, net_size, size, convention))
    if found.keypoints is None:
        return found
    points = rescale_keypoints(found.keypoints, net_size, size)
    return replace(found, keypoints=points)


def picture_detector(
    model: DetectionModel,
    view: View,
    views: Sequence[View] = (),
    tiling: Tiling | None = None,
    keypoint_names: Sequence[str] = (),
) -> AugmentedDetector | TiledDetector | None:
    """A detector of pictures in their own size, in several views, tiles or both; None: of neither.

    Args:
        model, keypoint_names: see `AugmentedDetector`.
        view: the size at which the model sees a picture or a tile.
        views: of test-time augmentation, in place of `view`.
        tiling: how pictures are cut.
    """
    augmented = AugmentedDetector(model, views, keypoint_names) if views else None
    if tiling is None:
        return augmented
    return TiledDetector(model, tiling, view, augmented)


def build_picture_detector(
    cfg: CfgNode, model: DetectionModel, keypoint_names: Sequence[str] = ()
) -> AugmentedDetector | TiledDetector | None:
    """That of TEST.BBOX_AUG and TEST.TILE; None: the model is given pictures resized."""
    view = View(cfg.INPUT.MIN_SIZE_TEST, cfg.INPUT.MAX_SIZE_TEST)
    return picture_detector(model, view, build_views(cfg), build_tiling(cfg), keypoint_names)


def build_tiling(cfg: CfgNode) -> Tiling | None:
    """What TEST.TILE says; None where it is 0."""
    test = cfg.TEST
    return Tiling(test.TILE, test.TILE_OVERLAP, test.IMS_PER_BATCH) if test.TILE else None
