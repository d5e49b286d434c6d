"""Tiling: detect objects in overlapping tiles of large images, and merge the detections.

As in SAHI, slicing aided hyper inference (Akyon et al., ICIP 2022,
https://arxiv.org/abs/2202.06934), each tile is an image for the model. So is the whole image, for
objects larger than a tile. All detections are suppressed together. Two detections are compared
within the overlap of their tiles, so that parts of an object match even if a tile shows little of
it. The box and mask of an object that is cut by tile borders are the union of its parts.

Shapes: N detections in a tile, P parts of an object, M x M cells of a mask.
"""

from collections.abc import Sequence, Sized
from dataclasses import astuple, dataclass

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from detlite.config import ConfigError
from detlite.conventions import Convention
from detlite.data.transforms.resize import size_of
from detlite.data.transforms.tiles import tile_windows
from detlite.structures import boxes as box_ops
from detlite.structures.instances import Detections
from detlite.structures.masks.pasting import paste_probabilities

from .image_detector import ImageDetector

# If a tile border cuts one of two detections, the lower-scoring one is dropped from this
# intersection over the smaller area (SAHI's metric IOS and its default).
_MAX_IOS = 0.5
_MIN_PART_IOU = 0.5  # IoU within the overlap from which two detections are parts of one object
_BORDER = 1 / 64  # a box that ends within this fraction of a tile's side may be cut


@dataclass(frozen=True)
class Tile:
    """Rectangle in pixels of an image; x2 and y2 are exclusive."""

    x1: int
    y1: int
    x2: int
    y2: int

    def crop(self, image: Tensor) -> Tensor:
        """Return the tile's pixels of an image [..., H, W]."""
        return image[..., self.y1 : self.y2, self.x1 : self.x2]

    def clip(self, boxes: Tensor) -> Tensor:
        """Clip boxes [N, 4] to the tile; boxes outside have area 0."""
        return box_ops.intersection(boxes, boxes.new_tensor(astuple(self)))

    def cuts(self, boxes: Tensor, size: tuple[int, int]) -> Tensor:
        """Return bool [N], True for boxes that end at a border of the tile inside the image."""
        inner = [self.x1 > 0, self.y1 > 0, self.x2 < size[1], self.y2 < size[0]]
        near = self._distances(boxes) < self._margin
        return (near & torch.tensor(inner, device=boxes.device)).any(1)

    def exceeded_by(self, boxes: Tensor) -> Tensor:
        """Return bool [N], True for boxes that extend beyond the tile."""
        return (self._distances(boxes) < -self._margin).any(dim=1)

    @property
    def _margin(self) -> float:
        return max(self.x2 - self.x1, self.y2 - self.y1) * _BORDER

    def _distances(self, boxes: Tensor) -> Tensor:
        """Return the distances [N, 4] from each side of boxes to the tile's, negative outside."""
        inside = boxes - boxes.new_tensor(astuple(self))
        return torch.cat([inside[:, :2], -inside[:, 2:]], dim=1)


def cut_tiles(size: tuple[int, int], side: int) -> list[Tile]:
    """Return evenly spaced tiles of an image of (height, width), row by row; see `tile_windows`."""
    windows = tile_windows(size, side)
    return [Tile(x, y, x + width, y + height) for y, x, height, width in windows]


class TiledDetector(ImageDetector):
    """Detects objects in the tiles of each image and in the whole image.

    The maximum number of detections per image applies to each tile, not to the merged detections.
    An image that fits into one tile is not cut.

    Args:
        detector: detects in each tile.
        side: of a tile in pixels of the original image.
        batch: maximum number of tiles per call of `detector`.
    """

    def __init__(self, detector: ImageDetector, side: int, batch: int = 8) -> None:
        if detector.takes_proposals:
            raise ConfigError(
                "TEST.TILE must be 0 for a Fast R-CNN: its proposals refer to whole images"
            )
        super().__init__(detector.model)
        self.detector = detector
        self.side, self.batch = side, batch

    def _detect(self, image: Tensor, proposals: Tensor | None, min_score: float) -> Detections:
        height, width = size = size_of(image)
        tiles = cut_tiles(size, self.side)
        detections = self.detector.detect([image], None, min_score)
        if len(tiles) == 1:
            return detections[0]
        for start in range(0, len(tiles), self.batch):
            batch = tiles[start : start + self.batch]
            in_tiles = self.detector.detect([tile.crop(image) for tile in batch], None, min_score)
            detections += [_shift(*pair) for pair in zip(in_tiles, batch, strict=True)]
        suppression = self.model.postprocess.suppression
        iou_thresh = suppression.views_iou_thresh or suppression.iou_thresh
        tiles = [Tile(0, 0, width, height), *tiles]
        agnostic = suppression.class_agnostic
        return merge(tiles, detections, size, iou_thresh, self.convention, agnostic)


def _shift(detections: Detections, tile: Tile) -> Detections:
    """Map detections of a tile to the image."""
    corner = detections.boxes.new_tensor([tile.x1, tile.y1])
    return detections.map_coordinates(
        lambda boxes: boxes + corner.repeat(2),
        ((1.0, 0.0, tile.x1), (0.0, 1.0, tile.y1)),
    )


def merge(
    tiles: Sequence[Tile],
    detections: Sequence[Detections],
    size: tuple[int, int],
    iou_thresh: float,
    convention: Convention,
    class_agnostic: bool = False,
) -> Detections:
    """Merge the detections of the tiles of an image, all in pixels of the image.

    In the order of scores, each remaining detection is completed by other parts of its object, and
    then drops other detections of its label that overlap it. Overlaps are measured in the
    intersection of both tiles:

    - The lower-scoring one of two complete detections is dropped if their IoU is above
      `iou_thresh`. If a tile border cuts one of them, it is dropped if they share more than half
      of the smaller box.
    - A cut detection is completed by detections that extend beyond its tile and whose IoU with it
      is above one half. If these are cut too, they are completed in the same way. The result has
      the union of the boxes and masks, the highest score of the parts and the own fields of the
      part with it, and each keypoint of the part with its highest score.

    `size` is (height, width) of the image, and `iou_thresh` the threshold of the model's own
    suppression. With `class_agnostic`, detections of different labels are compared too.
    """
    cut = [tile.cuts(found.boxes, size) for tile, found in zip(tiles, detections, strict=True)]
    offsets = torch.tensor([0, *map(len, cut)]).cumsum(0).tolist()
    # For each detection, the detections that it drops and the detections that complete it.
    drops: list[list[int]] = [[] for _ in range(offsets[-1])]
    completions: list[list[int]] = [[] for _ in range(offsets[-1])]
    for s, t in _pairs(tiles, cut):
        tile, other = tiles[s], tiles[t]
        iou, ios = _overlaps(other.clip(detections[s].boxes), tile.clip(detections[t].boxes))
        same_label = detections[s].labels[:, None] == detections[t].labels
        either_cut = cut[s][:, None] | cut[t]
        drop = torch.where(either_cut, ios > _MAX_IOS, iou > iou_thresh)
        complete = (iou > _MIN_PART_IOU) & tile.exceeded_by(detections[t].boxes)
        for i, j in (drop & (same_label | class_agnostic)).nonzero().tolist():
            drops[offsets[s] + i].append(offsets[t] + j)
        for i, j in (complete & same_label).nonzero().tolist():
            completions[offsets[s] + i].append(offsets[t] + j)
    joined = tree_map(lambda *fields: torch.cat(fields), *detections)
    groups = _group(joined.scores, torch.cat(cut).tolist(), drops, completions)
    leaders = torch.tensor([group[0] for group in groups], dtype=torch.int64)
    merged = joined[leaders.to(joined.boxes.device)]
    for row, group in enumerate(groups):
        if len(group) > 1:
            _write_union(merged, row, joined[group], convention)
    return merged


def _pairs(tiles: Sequence[Tile], detections: Sequence[Sized]) -> list[list[int]]:
    """Return all pairs of different tiles that overlap and have detections, in both orders."""
    x1, y1, x2, y2 = torch.tensor([astuple(tile) for tile in tiles]).unbind(1)
    used = torch.tensor([len(found) > 0 for found in detections])
    meet = (x1[:, None] < x2) & (x1 < x2[:, None]) & (y1[:, None] < y2) & (y1 < y2[:, None])
    return (meet & used & used[:, None]).fill_diagonal_(False).nonzero().tolist()


def _group(
    scores: Tensor, cut: list[bool], drops: list[list[int]], completions: list[list[int]]
) -> list[list[int]]:
    """Group detections that are one object, by decreasing score within and between groups."""
    done = [False] * len(scores)
    groups = []
    for best in scores.argsort(descending=True, stable=True).tolist():
        if done[best]:
            continue
        done[best] = True
        group = [best]
        for member in group:  # grows in the loop
            for other in completions[member] if cut[member] else ():
                if not done[other]:
                    done[other] = True
                    group.append(other)
        for member in group:
            for other in drops[member]:
                done[other] = True
        groups.append(group)
    return groups


def _write_union(merged: Detections, row: int, parts: Detections, convention: Convention) -> None:
    """Write the union of the parts [P, ...] of an object into a row of `merged`."""
    for boxes, merged_boxes in ((parts.boxes, merged.boxes), (parts.mask_boxes, merged.mask_boxes)):
        if boxes is not None and merged_boxes is not None:
            merged_boxes[row] = torch.cat([boxes[:, :2].amin(dim=0), boxes[:, 2:].amax(dim=0)])
    if parts.mask_probs is not None and merged.mask_probs is not None:
        # Paste the parts into the cells of the union's box.
        cells = parts.mask_probs.shape[-1]
        union = box_ops.pooled_region(merged.pasting_boxes[row], convention)
        regions = box_ops.pooled_region(parts.pasting_boxes, convention)
        sides = (union[2:] - union[:2]).clamp(min=1e-6)
        within = (regions - union[:2].repeat(2)) * (cells / sides).repeat(2)
        pasted = paste_probabilities(parts.mask_probs, within, (cells, cells))
        merged.mask_probs[row] = pasted.amax(dim=0).to(merged.mask_probs.dtype)
    if parts.keypoints is not None and merged.keypoints is not None:
        assert parts.keypoint_scores is not None
        assert merged.keypoint_scores is not None
        scores, part = parts.keypoint_scores.max(dim=0)
        points = torch.arange(len(part), device=part.device)
        merged.keypoints[row] = parts.keypoints[part, points]
        merged.keypoint_scores[row] = scores


def _overlaps(boxes: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Return the IoU and the intersection over the smaller area of each pair of boxes, [N, N']."""
    first, second = box_ops.area(boxes)[:, None], box_ops.area(others)
    shared = box_ops.area(box_ops.intersection(boxes[:, None], others))
    smaller = torch.minimum(first, second)
    return shared / (first + second - shared).clamp(min=1e-6), shared / smaller.clamp(min=1e-6)
