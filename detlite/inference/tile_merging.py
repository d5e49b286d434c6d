"""What is found in overlapping tiles of a picture, joined.

As in SAHI (see `tiling.py`) all is suppressed together. Detections are compared within what both
their tiles show, so that parts of an object agree however little of it a tile has. An object that
seams cut is the union of its parts, box and mask.

Shapes: N detections in a tile, P parts of an object, M x M cells of a mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from detlite.conventions import Convention
from detlite.structures import boxes as box_ops
from detlite.structures.instances import Detections
from detlite.structures.masks.pasting import paste_probabilities

# Of two detections of which a seam cuts one, the lesser is dropped where they share this part of
# the smaller (SAHI's metric IOS and its default).
_SHARED = 0.5
_COMPLETES = 0.5  # IoU from which two views of what both tiles show are of one object
_AT_SEAM = 1 / 64  # of a tile's side: a box that ends so close to a seam may be cut by it


@dataclass(frozen=True)
class Tile:
    """A part of a picture, in its pixels; the last ones are outside."""

    x1: int
    y1: int
    x2: int
    y2: int

    def of(self, picture: Tensor) -> Tensor:
        """Its pixels of a picture [..., H, W]."""
        return picture[..., self.y1 : self.y2, self.x1 : self.x2]

    def clip(self, boxes: Tensor) -> Tensor:
        """What of boxes [N, 4] lies in it; boxes outside have no area."""
        x = boxes[:, 0::2].clamp(self.x1, self.x2)
        y = boxes[:, 1::2].clamp(self.y1, self.y2)
        return torch.stack([x[:, 0], y[:, 0], x[:, 1], y[:, 1]], dim=1)

    def cuts(self, boxes: Tensor, size: tuple[int, int]) -> Tensor:
        """Bool [N]: which boxes end at a border of it that is not the picture's."""
        height, width = size
        seam = [self.x1 > 0, self.y1 > 0, self.x2 < width, self.y2 < height]
        return ((self._room(boxes) < self._near) & torch.tensor(seam, device=boxes.device)).any(1)

    def left_by(self, boxes: Tensor) -> Tensor:
        """Bool [N]: which boxes reach out of it."""
        return (self._room(boxes) < -self._near).any(dim=1)

    @property
    def _near(self) -> float:
        return max(self.x2 - self.x1, self.y2 - self.y1) * _AT_SEAM

    def _room(self, boxes: Tensor) -> Tensor:
        """[N, 4] from each side of boxes to that of the tile; negative outside."""
        low = boxes[:, :2] - boxes.new_tensor([self.x1, self.y1])
        return torch.cat([low, boxes.new_tensor([self.x2, self.y2]) - boxes[:, 2:]], dim=1)


def join(
    tiles: Sequence[Tile],
    found: Sequence[Detections],
    size: tuple[int, int],
    iou_thresh: float,
    convention: Convention,
) -> Detections:
    """The detections of a picture from those of its tiles, all in its frame.

    The best one goes first, takes in what completes it, and drops the others of its label that
    overlap it; then the best one that is left. Compared is what lies in both tiles:

    - Of two that no seam cuts, the lesser is dropped where their IoU is above `iou_thresh`; where
      one is cut, above half of the smaller box.
    - One that is cut is completed by those that reach beyond its tile and with which its IoU is
      above a half there, and these by others if they are cut, too. Boxes are united; of masks and
      keypoints the surer one counts.

    Args:
        tiles, found: each tile's detections, as `DetectionModel.detect` gives them.
        size: (height, width) of the picture.
        iou_thresh: as of the model's own suppression.
        convention: the model's.
    """
    cut = [tile.cuts(one.boxes, size) for tile, one in zip(tiles, found, strict=True)]
    first = torch.tensor([0, *map(len, cut)]).cumsum(0).tolist()
    drops: list[list[int]] = [[] for _ in range(first[-1])]
    completes: list[list[int]] = [[] for _ in range(first[-1])]
    for s, one in enumerate(tiles):
        for t, other in enumerate(tiles[:s]):
            boxes = [tile.clip(found[place].boxes) for place, tile in ((s, other), (t, one))]
            alike = found[s].labels[:, None] == found[t].labels
            iou, shared = _overlaps(*boxes)
            either_cut = cut[s][:, None] | cut[t]
            drop = alike & torch.where(either_cut, shared > _SHARED, iou > iou_thresh)
            for i, j in drop.nonzero().tolist():
                drops[first[s] + i].append(first[t] + j)
                drops[first[t] + j].append(first[s] + i)
            agree = alike & (iou > _COMPLETES)
            for i, j in (agree & one.left_by(found[t].boxes)).nonzero().tolist():
                completes[first[s] + i].append(first[t] + j)
            for i, j in (agree & other.left_by(found[s].boxes)[:, None]).nonzero().tolist():
                completes[first[t] + j].append(first[s] + i)
    everything = _cat(found)
    groups = _groups(everything.scores, torch.cat(cut).tolist(), drops, completes)
    leaders = torch.tensor([group[0] for group in groups], dtype=torch.int64)
    joined = everything[leaders.to(everything.boxes.device)]
    for place, group in enumerate(groups):
        if len(group) > 1:
            _unite(joined, place, everything[group], convention)
    return joined


def _groups(
    scores: Tensor, cut: list[bool], drops: list[list[int]], completes: list[list[int]]
) -> list[list[int]]:
    """Detections that are one object, the best first, and the best group first."""
    gone = [False] * len(scores)
    groups = []
    for best in scores.argsort(descending=True, stable=True).tolist():
        if gone[best]:
            continue
        gone[best] = True
        group = [best]
        for member in group:  # which grows
            for other in completes[member] if cut[member] else ():
                if not gone[other]:
                    gone[other] = True
                    group.append(other)
        for member in group:
            for other in drops[member]:
                gone[other] = True
        groups.append(group)
    return groups


def _unite(joined: Detections, place: int, parts: Detections, convention: Convention) -> None:
    """Writes the union of parts [P, ...] into a row of detections."""
    boxes = parts.boxes
    box = torch.cat([boxes[:, :2].amin(dim=0), boxes[:, 2:].amax(dim=0)])
    joined.boxes[place] = box
    if parts.mask_probs is not None and joined.mask_probs is not None:
        # The union's cells are an image into which the parts are pasted.
        cells = parts.mask_probs.shape[-1]
        union, own = (
            box_ops.pooled_region(box, convention),
            box_ops.pooled_region(boxes, convention),
        )
        sides = (union[2:] - union[:2]).clamp(min=1e-6)
        within = (own - union[:2].repeat(2)) * (cells / sides).repeat(2)
        pasted = paste_probabilities(parts.mask_probs, within, (cells, cells))
        joined.mask_probs[place] = pasted.amax(dim=0).to(joined.mask_probs.dtype)
    if parts.keypoints is not None and joined.keypoints is not None:
        assert parts.keypoint_scores is not None
        assert joined.keypoint_scores is not None
        sure, part = parts.keypoint_scores.max(dim=0)
        points = torch.arange(len(part), device=part.device)
        joined.keypoints[place] = parts.keypoints[part, points]
        joined.keypoint_scores[place] = sure


def _cat(found: Sequence[Detections]) -> Detections:
    """The detections of all tiles, one after the other."""
    names = [f.name for f in fields(Detections) if getattr(found[0], f.name) is not None]
    return Detections(**{name: torch.cat([getattr(one, name) for one in found]) for name in names})


def _overlaps(boxes: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """IoU [N, N'] of boxes, and what they share as a part of the smaller one."""
    low = torch.maximum(boxes[:, None, :2], others[:, :2])
    high = torch.minimum(boxes[:, None, 2:], others[:, 2:])
    both = (high - low).clamp(min=0).prod(dim=2)
    areas = [(own[:, 2:] - own[:, :2]).clamp(min=0).prod(dim=1) for own in (boxes, others)]
    union = areas[0][:, None] + areas[1] - both
    smaller = torch.minimum(areas[0][:, None], areas[1])
    return both / union.clamp(min=1e-6), both / smaller.clamp(min=1e-6)
