"""Tiling: detect objects in overlapping tiles of large images, and merge the detections.

As in SAHI, slicing aided hyper inference (Akyon et al., ICIP 2022,
https://arxiv.org/abs/2202.06934), each tile is an image for the model. The whole image is one too,
for objects larger than a tile. `tile_merging.py` merges the detections.
"""

from dataclasses import dataclass, replace

from torch import Tensor
from torch.nn import functional as F
from yacs.config import CfgNode

from detlite.config import ConfigError
from detlite.data.transforms.tiles import tile_windows
from detlite.structures.instances import Detections

from .detectors import ImageDetector, size_of
from .tile_merging import Tile, merge


@dataclass(frozen=True)
class Tiling:
    """Rule by which images are cut into tiles, see `tile_windows`. Tiles are resized as images are."""

    side: int  # of a tile in pixels of the original image
    overlap: float = 0.2  # minimum overlap of neighbors as a fraction of the side
    batch: int = 8  # maximum number of tiles per call of the model

    def __post_init__(self) -> None:
        if self.side < 1 or not 0 <= self.overlap < 1 or self.batch < 1:
            raise ValueError(f"{self}: side and batch must be at least 1, overlap in [0, 1)")

    def tiles(self, size: tuple[int, int]) -> list[Tile]:
        """Return evenly spaced tiles of an image of (height, width), row by row."""
        windows = tile_windows(size, self.side, self.overlap)
        return [Tile(x, y, x + width, y + height) for y, x, height, width in windows]


class TiledDetector(ImageDetector):
    """Detects objects in the tiles of each image and in the whole image.

    The maximum number of detections per image applies to each tile, not to the merged detections.
    An image that fits into one tile is not cut.
    """

    def __init__(self, detector: ImageDetector, tiling: Tiling) -> None:
        if detector.takes_proposals:
            raise ConfigError(
                "TEST.TILE must be 0 for a Fast R-CNN: its proposals refer to whole images"
            )
        super().__init__(detector.model)
        self.detector = detector
        self.tiling = tiling

    def _detect(self, image: Tensor, proposals: Tensor | None, min_score: float) -> Detections:
        height, width = size = size_of(image)
        tiles = self.tiling.tiles(size)
        detections = self.detector.detect([image], None, min_score)
        if len(tiles) == 1:
            return detections[0]
        for start in range(0, len(tiles), self.tiling.batch):
            batch = tiles[start : start + self.tiling.batch]
            in_tiles = self.detector.detect([tile.crop(image) for tile in batch], None, min_score)
            detections += [_shift(one, tile) for one, tile in zip(in_tiles, batch, strict=True)]
        suppression = self.model.postprocess.suppression
        iou_thresh = suppression.views_iou_thresh or suppression.iou_thresh
        tiles = [Tile(0, 0, width, height), *tiles]
        agnostic = suppression.class_agnostic
        return merge(tiles, detections, size, iou_thresh, self.convention, agnostic)


def _shift(detections: Detections, tile: Tile) -> Detections:
    """Map detections of a tile to the image."""
    corner = detections.boxes.new_tensor([tile.x1, tile.y1])
    shifted = replace(detections, boxes=detections.boxes + corner.repeat(2))
    if detections.mask_boxes is not None:
        shifted = replace(shifted, mask_boxes=detections.mask_boxes + corner.repeat(2))
    if detections.keypoints is None:
        return shifted
    return replace(shifted, keypoints=detections.keypoints + F.pad(corner, (0, 1)))


def build_tiling(cfg: CfgNode) -> Tiling | None:
    """Build the tiling of TEST.TILE; None if it is 0."""
    test = cfg.TEST
    return Tiling(test.TILE, test.TILE_OVERLAP, test.IMS_PER_BATCH) if test.TILE else None
