"""Match anchors and proposals to ground truth by IoU (Faster R-CNN, section 3.1.2)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from detlite.ops import match_boxes
from detlite.structures import boxes as box_ops
from detlite.structures.instances import GroundTruth

BACKGROUND = -1
IGNORE = -2
_MAX_PAIRS = 1 << 18  # of boxes and ignored regions compared at a time


@dataclass(frozen=True)
class Matcher:
    """Assigns each box to the ground truth of highest IoU or to background, by IoU thresholds."""

    # IoU from which a box is foreground.
    foreground: float
    # IoU below which a box is background. Boxes between the two are ignored.
    background: float
    # The boxes with the highest IoU of a ground truth are foreground as well, however low it is.
    # Without this, small objects would have no anchor.
    allow_low_quality_matches: bool = False

    def __call__(self, truth: GroundTruth, boxes: Tensor, valid: Tensor | None = None) -> Tensor:
        """Match boxes [B, N, 4], or [N, 4] for all images, to the ground truth [B, G].

        Returns:
            int64 [B, N], indices into the image's ground truth, BACKGROUND or IGNORE. Boxes are
            IGNORE where `valid`, bool [B, N], is False, and background boxes also if at least half
            of their area is inside an ignored region.
        """
        index, iou, best = match_boxes(truth.boxes, truth.valid, boxes)
        matched = torch.where(iou < self.foreground, IGNORE, index)
        matched = torch.where(iou < self.background, BACKGROUND, matched)
        matched = torch.where(index < 0, BACKGROUND, matched)  # an image without ground truth
        if self.allow_low_quality_matches:
            matched = torch.where(best, index, matched)
        if truth.ignored is not None:
            in_region = _half_inside(boxes, truth.ignored) & (matched == BACKGROUND)
            matched = torch.where(in_region, IGNORE, matched)
        return matched if valid is None else torch.where(valid, matched, IGNORE)


def _half_inside(boxes: Tensor, regions: Tensor) -> Tensor:
    """Return bool [B, N], True if half of the area of a box is inside one of regions [B, M, 4].

    `boxes` are [B, N, 4] or [N, 4].
    """
    # One axis at a time, in place and for a part of the regions: the tables are memory-bound.
    block = max(1, _MAX_PAIRS // max(1, len(regions) * boxes.shape[-2]))
    x1, y1, x2, y2 = (side.contiguous() for side in boxes.unsqueeze(-3).unbind(-1))  # [B|1, 1, N]
    half = 0.5 * box_ops.area(boxes).unsqueeze(-2)
    inside = torch.zeros((len(regions), boxes.shape[-2]), dtype=torch.bool, device=boxes.device)
    for part in (regions,) if torch.compiler.is_compiling() else regions.split(block, dim=1):
        left, top, right, bottom = part.unsqueeze(-2).unbind(-1)  # [B, m, 1]
        width = torch.minimum(x2, right).sub_(torch.maximum(x1, left)).clamp_(min=0)
        height = torch.minimum(y2, bottom).sub_(torch.maximum(y1, top)).clamp_(min=0)
        inside |= (width.mul_(height) >= half).any(dim=1)
    return inside
