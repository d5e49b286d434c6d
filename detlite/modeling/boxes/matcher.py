"""Match anchors and proposals to ground truth by IoU (Faster R-CNN, section 3.1.2)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from detlite.ops import match_boxes
from detlite.structures import boxes as box_ops
from detlite.structures.instances import GroundTruth

BACKGROUND = -1
IGNORE = -2


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

    `boxes` are [B, N, 4] or [N, 4]. The loop is over regions, because images have few of them.
    """
    half = 0.5 * box_ops.area(boxes)
    inside = torch.zeros((len(regions), boxes.shape[-2]), dtype=torch.bool, device=boxes.device)
    for region in regions[:, :, None].unbind(dim=1):  # [B, 1, 4]
        inside |= box_ops.area(box_ops.intersection(boxes, region)) >= half
    return inside
