"""Improve boxes by their masks, and score masks.

Shapes: B images with D detections each, padded; R detections, M x M cells of a mask.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from yacs.config import CfgNode

from detlite.conventions import Convention, convention_of
from detlite.structures import boxes as box_ops
from detlite.structures.instances import Detections


@dataclass(frozen=True)
class MaskRefinement:
    """Moves boxes towards their masks, and computes mask scores.

    Mask Scoring R-CNN (https://arxiv.org/abs/1903.00241) trains a head for such scores; these are
    computed from the probabilities of the mask.
    """

    box_weight: float  # weight of the mask's tight box in its average with the predicted box
    # Power of the mask's mean foreground probability in its score; 0: no mask scores.
    exponent: float
    threshold: float  # lowest probability of a foreground cell
    convention: Convention

    def __call__(self, detections: Detections, sizes: Tensor) -> Detections:
        """Set the boxes, `mask_boxes` and `mask_scores` of detections [B, D].

        `sizes` int64 [B, 2] are the image sizes. The order of detections does not change.
        """
        assert detections.mask_probs is not None
        probs = detections.mask_probs.flatten(0, 1)
        if self.box_weight:
            boxes = detections.boxes
            tight, found = tight_boxes(probs, boxes.flatten(0, 1), self.threshold, self.convention)
            mean = torch.lerp(boxes, tight.view_as(boxes), self.box_weight)
            mean = box_ops.clip(mean, sizes, self.convention)
            moved = torch.where(found.view_as(detections.valid)[..., None], mean, boxes)
            detections = replace(detections, boxes=moved, mask_boxes=boxes)
        if self.exponent:
            confidence = mean_foreground(probs, self.threshold).view_as(detections.scores)
            mask_scores = detections.scores * confidence**self.exponent
            detections = replace(detections, mask_scores=mask_scores)
        return detections


def tight_boxes(
    probs: Tensor, boxes: Tensor, threshold: float, convention: Convention
) -> tuple[Tensor, Tensor]:
    """Return the smallest boxes [R, 4] around masks [R, M, M] that fill `boxes` [R, 4], and bool
    [R], False for an empty mask, whose box is undefined.

    As in pasting, probabilities between cell centers are interpolated, with zeros around the mask.
    """
    region = box_ops.pooled_region(boxes, convention)
    # Maps whose lines of cells run from the left, top, right and bottom: [4 R, M, M].
    maps = torch.cat([probs.transpose(1, 2), probs])
    maps = torch.cat([maps, maps.flip(1)])
    line = (maps.amax(dim=2) >= threshold).float().argmax(dim=1)  # the first with foreground
    rows = torch.arange(maps.shape[0], device=maps.device)
    inner, outer = maps[rows, line], maps[rows, (line - 1).clamp(min=0)]
    outer = torch.where(line[:, None] > 0, outer, 0)
    # How far the foreground reaches from the center of a cell towards the line outside.
    reach = ((inner - threshold) / (inner - outer).clamp(min=1e-6)).amax(dim=1).clamp(max=1)
    margins = (line + 0.5 - reach).view(2, 2, -1).permute(0, 2, 1)  # start and end, [R, 2] of x, y
    cell = (region[:, 2:] - region[:, :2]) / probs.shape[-1]
    low, high = region[:, :2] + margins[0] * cell, region[:, 2:] - margins[1] * cell
    found = (inner >= threshold).any(dim=1)[: probs.shape[0]]  # len() would fix the exported size
    return torch.cat([low, high + int(convention.inclusive_boxes)], dim=1), found


def mean_foreground(probs: Tensor, threshold: float) -> Tensor:
    """Return the mean probability [R] of the foreground of masks [R, M, M], or the largest
    probability of an empty mask."""
    probs = probs.flatten(1)
    inside = probs >= threshold
    count = inside.sum(dim=1)
    mean = torch.where(inside, probs, 0).sum(dim=1) / count.clamp(min=1)
    return torch.where(count > 0, mean, probs.amax(dim=1))


def build_mask_refinement(cfg: CfgNode) -> MaskRefinement:
    """Build the refinement of TEST.BOX_FROM_MASK and TEST.MASK_CONFIDENCE."""
    test, threshold = cfg.TEST, cfg.MODEL.ROI_MASK_HEAD.POSTPROCESS_MASKS_THRESHOLD
    return MaskRefinement(test.BOX_FROM_MASK, test.MASK_CONFIDENCE, threshold, convention_of(cfg))
