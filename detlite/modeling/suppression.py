"""From scored boxes to detections: several boxes of one object become one.

Shapes: N candidates and D detections in an image.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from yacs.config import CfgNode

from ..ops import batched_nms
from ..structures import boxes as box_ops

Scored = dict[str, Tensor]  # boxes [N, 4], scores [N], labels [N]


@dataclass(frozen=True)
class Suppression:
    """What happens to boxes of the same label that overlap.

    Attributes:
        method: "nms" keeps the best. "soft-linear" and "soft-gaussian" lower the scores of the
            others instead (soft-NMS, https://arxiv.org/abs/1704.04503). "voting" is "nms", then
            moves each box kept to the mean of its neighbours, weighted by their scores
            (https://arxiv.org/abs/1505.01749, section 4). "fusion" replaces each group of boxes by
            that mean and their mean score (weighted boxes fusion,
            https://arxiv.org/abs/1910.13302).
        sigma: of "soft-gaussian", a score is multiplied by exp(-IoU^2 / sigma).
        vote_iou: of "voting", the least overlap of a neighbour.
        min_score: where scores are lowered, those not above it are dropped.
    """

    method: str = "nms"
    sigma: float = 0.5
    vote_iou: float = 0.8
    min_score: float = 0.001


@dataclass(frozen=True)
class DetectionLimits:
    """Which scored boxes become detections."""

    score_thresh: float
    nms_thresh: float
    per_image: int
    min_size: float = 0.0  # of a side, in pixels of the network's input
    suppression: Suppression = Suppression()


def suppress(candidates: Scored, limits: DetectionLimits, views: int = 1) -> Scored:
    """The detections of an image.

    Args:
        candidates: `boxes` float32 [N, 4] xyxy, `scores` [N] and `labels` [N], all usable: what
            `limits.score_thresh` and `min_size` leave.
        limits: overlaps above `nms_thresh` are suppressed as `suppression` says; the `per_image`
            best stay.
        views: how many views of the image the candidates come from: "fusion" trusts a box less
            that fewer of them found.

    Returns:
        `boxes` [D, 4], `scores` [D] in decreasing order and `labels` [D].
    """
    boxes, scores, labels = (candidates[name] for name in ("boxes", "scores", "labels"))
    rule = limits.suppression
    if rule.method == "fusion":
        boxes, scores, labels = _fuse(boxes, scores, labels, limits.nms_thresh, views)
        keep = torch.where(scores > rule.min_score)[0][: limits.per_image]
    elif rule.method.startswith("soft"):
        keep, lowered = _soft_nms(boxes, scores, labels, limits)
        above = lowered > rule.min_score
        keep = keep[above]
        scores = scores.index_copy(0, keep, lowered[above])
    else:
        keep = batched_nms(boxes, scores, labels, limits.nms_thresh)[: limits.per_image]
        if rule.method == "voting":
            boxes = boxes.index_copy(0, keep, _vote(boxes, scores, labels, keep, rule.vote_iou))
    return {"boxes": boxes[keep], "scores": scores[keep], "labels": labels[keep]}


def _soft_nms(
    boxes: Tensor, scores: Tensor, labels: Tensor, limits: DetectionLimits
) -> tuple[Tensor, Tensor]:
    """The `per_image` best by lowered score: their indices [D] and those scores [D]."""
    gaussian = limits.suppression.method == "soft-gaussian"
    scores = scores.clone()
    picked, lowered = [], []
    # Scores only fall, so boxes are picked in decreasing order, and no more than are wanted.
    for _ in range(min(limits.per_image, len(scores))):
        score, best = scores.max(dim=0, keepdim=True)
        picked.append(best)
        lowered.append(score)
        overlap = box_ops.iou(boxes[best], boxes)[0] * (labels == labels[best])
        if gaussian:
            scores *= torch.exp(-overlap.square() / limits.suppression.sigma)
        else:
            scores *= torch.where(overlap > limits.nms_thresh, 1 - overlap, 1.0)
        scores.index_fill_(0, best, -1.0)  # never again
    if not picked:
        return torch.zeros_like(labels), scores
    return torch.cat(picked), torch.cat(lowered)


def _vote(boxes: Tensor, scores: Tensor, labels: Tensor, keep: Tensor, vote_iou: float) -> Tensor:
    """Means [D, 4] of the candidates around those of indices `keep` [D], weighted by score."""
    near = box_ops.iou(boxes[keep], boxes) >= vote_iou  # (D, N)
    weights = scores * (near & (labels[keep, None] == labels))
    # Not a matrix product, which autocast would take in half precision.
    return (weights[:, :, None] * boxes).sum(dim=1) / weights.sum(dim=1, keepdim=True)


def _fuse(
    boxes: Tensor, scores: Tensor, labels: Tensor, iou_thresh: float, views: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Groups as boxes [G, 4], scores [G] in decreasing order and labels [G]."""
    order = scores.argsort(descending=True, stable=True)
    # One by one, each joins the group whose mean it overlaps most: a chain of steps so small that
    # numpy takes a fraction of torch's time.
    columns = (t[order].double().cpu().numpy() for t in (boxes, scores, labels))
    means, areas = np.zeros((len(order), 4)), np.zeros(len(order))
    weights, sizes, group_labels = (np.zeros(len(order)) for _ in range(3))
    groups = 0
    for box, score, label in zip(*columns, strict=True):
        low = np.maximum(box[:2], means[:groups, :2])
        both = (np.minimum(box[2:], means[:groups, 2:]) - low).clip(0).prod(axis=1)
        overlap = both / (areas[:groups] + (box[2:] - box[:2]).prod() - both)
        overlap[group_labels[:groups] != label] = 0
        best = int(overlap.argmax()) if groups else 0
        group = best if groups and overlap[best] > iou_thresh else groups
        groups = max(groups, group + 1)
        weights[group] += score
        sizes[group] += 1
        means[group] += (box - means[group]) * (score / weights[group])
        areas[group] = (means[group, 2:] - means[group, :2]).prod()
        group_labels[group] = label
    fused = weights / sizes.clip(1) * sizes.clip(max=views) / views
    order = torch.from_numpy(fused[:groups]).argsort(descending=True, stable=True)

    def tensor(column: np.ndarray, like: Tensor) -> Tensor:
        return torch.from_numpy(column[:groups])[order].to(like)

    return tensor(means, boxes), tensor(fused, scores), tensor(group_labels, labels)


def build_suppression(cfg: CfgNode) -> Suppression:
    """What TEST.NMS says."""
    nms = cfg.TEST.NMS
    return Suppression(nms.METHOD, nms.SIGMA, nms.VOTE_THRESH, nms.MIN_SCORE)


def build_detection_limits(cfg: CfgNode) -> DetectionLimits:
    """Those of the box head: MODEL.ROI_HEADS and TEST.NMS."""
    heads = cfg.MODEL.ROI_HEADS
    return DetectionLimits(
        heads.SCORE_THRESH,
        heads.NMS,
        heads.DETECTIONS_PER_IMG,
        heads.MIN_SIZE,
        build_suppression(cfg),
    )
