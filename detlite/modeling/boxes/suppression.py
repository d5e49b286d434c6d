"""Suppress overlapping boxes: NMS, soft-NMS and box voting.

Shapes: B images, N predicted boxes and D detections per image, padded.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from detlite.ops import padded_nms
from detlite.structures import boxes as box_ops
from detlite.structures.instances import Detections, PredictedBoxes
from detlite.structures.padding import gather, padded_length

# The papers' values.
SIGMA = 0.5  # "soft-gaussian" multiplies a score by exp(-IoU^2 / sigma)
MIN_SCORE = 0.001  # soft-NMS drops boxes that do not exceed it
VOTE_IOU = 0.8  # lowest IoU of a neighbor in "voting"


@dataclass(frozen=True)
class Suppression:
    """Settings for overlapping boxes of a label, or of all labels together.

    The method "nms" keeps the highest-scoring box. "soft-linear" and "soft-gaussian" lower the
    scores of the others instead (soft-NMS, https://arxiv.org/abs/1704.04503). "voting" is "nms",
    and then moves each box to the mean of its neighbors, weighted by score
    (https://arxiv.org/abs/1505.01749, section 4).
    """

    iou_thresh: float  # IoU above which two boxes show the same object
    method: str = "nms"
    class_agnostic: bool = False  # boxes of different labels suppress each other too
    views_iou_thresh: float | None = None  # replaces `iou_thresh` for boxes of several views


def suppress(
    predicted: PredictedBoxes,
    settings: Suppression,
    limit: int,
    static_shapes: bool,
    views: int = 1,
) -> Detections:
    """Suppress overlaps among boxes [B, N]; return detections [B, D] by decreasing score.

    D is `limit` with `static_shapes`, otherwise the largest number of detections of an image. The
    boxes come from `views` views of each image.
    """
    if views > 1 and settings.views_iou_thresh is not None:
        settings = replace(settings, iou_thresh=settings.views_iou_thresh)
    limit = min(limit, predicted.valid.shape[1])
    labels = predicted.labels
    groups = torch.zeros_like(labels) if settings.class_agnostic else labels
    if settings.method.startswith("soft"):
        index, changes = _soft_nms(predicted, groups, settings, limit)
    else:
        boxes, scores = predicted.boxes, predicted.scores
        index, valid = padded_nms(
            boxes, scores, groups, predicted.valid, settings.iou_thresh, limit
        )
        changes = {"valid": valid}
        if settings.method == "voting":
            changes["boxes"] = _vote(predicted, groups, index)
    selected = vars(predicted.map(lambda field: gather(field, index)))
    detections = Detections(**{**selected, **changes})
    return detections[:, : padded_length(detections.valid, static_shapes)]


def _soft_nms(
    predicted: PredictedBoxes, groups: Tensor, settings: Suppression, limit: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """Select the best box `limit` times, and lower the scores of overlapping boxes each time.

    Returns the indices [B, D] of the selected boxes, and the fields of detections that change.
    """
    boxes = predicted.boxes
    scores = torch.where(predicted.valid, predicted.scores, -1.0)
    picked, picked_scores = [groups[:, :0]], [scores[:, :0]]  # the limit may be 0
    # Scores only decrease, so boxes are selected in decreasing order.
    for _ in range(limit):
        score, best = scores.max(dim=1, keepdim=True)  # [B, 1]
        picked.append(best)
        picked_scores.append(score)
        overlap = box_ops.iou(gather(boxes, best), boxes)[:, 0] * (groups == groups.gather(1, best))
        if settings.method == "soft-gaussian":
            scores = scores * torch.exp(-overlap.square() / SIGMA)
        else:
            scores = scores * torch.where(overlap > settings.iou_thresh, 1 - overlap, 1.0)
        scores = scores.scatter(1, best, -1.0)
    index, kept_scores = torch.cat(picked, dim=1), torch.cat(picked_scores, dim=1)
    return index, {"scores": kept_scores, "valid": kept_scores > MIN_SCORE}


def _vote(predicted: PredictedBoxes, groups: Tensor, index: Tensor) -> Tensor:
    """Average the neighbors of the boxes at `index` [B, D], weighted by score: [B, D, 4]."""
    boxes = gather(predicted.boxes, index)
    near = box_ops.iou(boxes, predicted.boxes) >= VOTE_IOU  # [B, D, N]
    near = near & (groups.gather(1, index)[:, :, None] == groups[:, None])
    near = near & predicted.valid[:, None]
    # Selected, not multiplied by 0: a NaN box would make all means NaN.
    weights = torch.where(near, predicted.scores[:, None], 0)
    # No matrix product, which autocast would compute in half precision.
    moments = weights[..., None] * predicted.boxes[:, None]
    sums = torch.where(near[..., None], moments, 0).sum(dim=2)
    total = weights.sum(dim=2)[..., None]
    return torch.where(total > 0, sums / total, boxes)
