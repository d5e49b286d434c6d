"""From predicted boxes to detections: clipped, thresholded by size, suppressed. The one place.

Shapes: B images, N predicted boxes and D detections in an image, padded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from yacs.config import CfgNode

from detlite.conventions import Convention, convention_of
from detlite.ops import padded_nms
from detlite.structures import boxes as box_ops
from detlite.structures.instances import Detections, PredictedBoxes
from detlite.structures.padding import gather, leading, shapes_vary


@dataclass(frozen=True)
class Suppression:
    """What happens to boxes of the same label that overlap.

    Attributes:
        iou_thresh: the overlap above which two boxes show the same object.
        method: "nms" keeps the best. "soft-linear" and "soft-gaussian" lower the scores of the
            others instead (soft-NMS, https://arxiv.org/abs/1704.04503). "voting" is "nms", then
            moves each box kept to the mean of its neighbours, weighted by their scores
            (https://arxiv.org/abs/1505.01749, section 4). "fusion" replaces each group of boxes by
            that mean and their mean score (weighted boxes fusion,
            https://arxiv.org/abs/1910.13302): a box found in only some of the views gets a lower
            score.
        sigma: of "soft-gaussian", a score is multiplied by exp(-IoU^2 / sigma).
        vote_iou: of "voting", the least overlap of a neighbour.
        min_score: where scores are lowered, those not above it are dropped.
        views_iou_thresh: `iou_thresh` of several views together, where it is another one.
    """

    iou_thresh: float
    method: str = "nms"
    sigma: float = 0.5
    vote_iou: float = 0.8
    min_score: float = 0.001
    views_iou_thresh: float | None = None


@dataclass(frozen=True)
class Postprocess:
    """Which predicted boxes become detections.

    Plain inference calls the whole; test-time augmentation calls `usable` for each view, and then
    `suppress` and `finish` for all together.

    Attributes:
        convention: how boxes are clipped.
        suppression: what happens to boxes of one label that overlap.
        detections_per_image: how many of an image are kept at most, the best.
        min_size: clipped boxes need sides of so many pixels of the network's input, and of more
            than 0; negative: even empty ones stay.
        clip: whether boxes are clipped, and small ones dropped, before or after suppression.
    """

    convention: Convention
    suppression: Suppression
    detections_per_image: int
    min_size: float = 0.0
    clip: Literal["before-nms", "after-nms"] = "before-nms"

    def __call__(
        self, predicted: PredictedBoxes, sizes: Tensor, min_score: float = 0.0
    ) -> Detections:
        """Detections [B, D] of predicted boxes [B, N] in images of sizes [B, 2].

        Those that in the end score less than `min_score` are left out.
        """
        return self.finish(self.suppress(self.usable(predicted, sizes)), sizes, min_score)

    def usable(self, predicted: PredictedBoxes, sizes: Tensor) -> PredictedBoxes:
        """The boxes that may compete: clipped and large enough, where that comes first."""
        if self.clip == "after-nms":
            return predicted
        boxes = box_ops.clip(predicted.boxes, sizes, self.convention)
        return replace(predicted, boxes=boxes, valid=predicted.valid & self._large(boxes))

    def suppress(self, predicted: PredictedBoxes, views: int = 1) -> Detections:
        """The best of [B, N] that do not overlap; they come from so many views of an image."""
        return suppress(predicted, self.suppression, self.detections_per_image, views)

    def finish(self, detections: Detections, sizes: Tensor, min_score: float = 0.0) -> Detections:
        """Drops unlikely boxes; clips and drops what is too small, where that comes last."""
        likely = detections.valid & (detections.scores >= min_score)
        detections = replace(detections, valid=likely)
        if self.clip == "before-nms":
            return detections
        boxes = box_ops.clip(detections.boxes, sizes, self.convention)
        index, valid = leading(detections.valid & self._large(boxes), boxes.shape[1])
        kept = replace(detections, boxes=boxes).map(lambda field: gather(field, index))
        return replace(kept, valid=valid)

    def _large(self, boxes: Tensor) -> Tensor:
        """Bool [B, N]; True for all where `min_size` is negative."""
        return box_ops.has_min_size(boxes, self.min_size) | (self.min_size < 0)


def suppress(predicted: PredictedBoxes, rule: Suppression, most: int, views: int = 1) -> Detections:
    """The `most` best detections of each image, from predicted boxes [B, N] of so many views.

    They are [B, D] by decreasing score. D is `most` (or N, if that is less), or what the fullest
    image has where shapes vary.
    """
    if views > 1 and rule.views_iou_thresh is not None:
        rule = replace(rule, iou_thresh=rule.views_iou_thresh)
    most = min(most, predicted.valid.shape[1])
    if rule.method == "fusion":
        found = _fused(predicted, rule, most, views)
    elif rule.method.startswith("soft"):
        found = _soft_nms(predicted, rule, most)
    else:
        boxes, scores, labels = predicted.boxes, predicted.scores, predicted.labels
        index, valid = padded_nms(boxes, scores, labels, predicted.valid, rule.iou_thresh, most)
        found = Detections(
            gather(boxes, index), scores.gather(1, index), labels.gather(1, index), valid
        )
        if rule.method == "voting":
            found = replace(found, boxes=_votes(predicted, found, rule.vote_iou))
    return found[:, : int(found.valid.sum(dim=1).max())] if shapes_vary(found.valid) else found


def _soft_nms(predicted: PredictedBoxes, rule: Suppression, most: int) -> Detections:
    """Picks the best `most` times, each time lowering the scores of what overlaps it."""
    boxes, labels = predicted.boxes, predicted.labels
    scores = torch.where(predicted.valid, predicted.scores, -1.0)
    picked, lowered = [labels[:, :0]], [scores[:, :0]]  # none may be wanted
    # Scores only fall, so boxes are picked in decreasing order, and no more than are wanted.
    for _ in range(most):
        score, best = scores.max(dim=1, keepdim=True)  # (B, 1)
        picked.append(best)
        lowered.append(score)
        overlap = box_ops.iou(gather(boxes, best), boxes)[:, 0] * (labels == labels.gather(1, best))
        if rule.method == "soft-gaussian":
            scores = scores * torch.exp(-overlap.square() / rule.sigma)
        else:
            scores = scores * torch.where(overlap > rule.iou_thresh, 1 - overlap, 1.0)
        scores = scores.scatter(1, best, -1.0)  # never again
    index, kept_scores = torch.cat(picked, dim=1), torch.cat(lowered, dim=1)
    return Detections(
        gather(boxes, index), kept_scores, labels.gather(1, index), kept_scores > rule.min_score
    )


def _votes(predicted: PredictedBoxes, found: Detections, vote_iou: float) -> Tensor:
    """Means [B, D, 4] of the predicted boxes around each detection, weighted by score."""
    near = box_ops.iou(found.boxes, predicted.boxes) >= vote_iou  # (B, D, N)
    near = near & (found.labels[:, :, None] == predicted.labels[:, None])
    near = near & predicted.valid[:, None]
    # Chosen, not multiplied by 0: a box that is no number would make all means so.
    weights = torch.where(near, predicted.scores[:, None], 0)
    # Not a matrix product, which autocast would take in half precision.
    moments = weights[..., None] * predicted.boxes[:, None]
    sums = torch.where(near[..., None], moments, 0).sum(dim=2)
    total = weights.sum(dim=2)[..., None]
    return torch.where(total > 0, sums / total, found.boxes)


def _fused(predicted: PredictedBoxes, rule: Suppression, most: int, views: int) -> Detections:
    """Weighted boxes fusion, image by image on the host."""
    none = predicted[:, :most].map(torch.zeros_like)
    fused = Detections(none.boxes, none.scores, none.labels, none.valid)
    for image, valid in enumerate(predicted.valid):
        own = predicted[image][valid]
        groups = _fuse(own.boxes, own.scores, own.labels, rule.iou_thresh, views)
        count = min(most, int((groups[1] > rule.min_score).sum()))
        for to, values in zip((fused.boxes, fused.scores, fused.labels), groups, strict=True):
            to[image, :count] = values[:count]
        fused.valid[image, :count] = True
    return fused


def _fuse(
    boxes: Tensor, scores: Tensor, labels: Tensor, iou_thresh: float, views: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Groups of an image as boxes [G, 4], scores [G] in decreasing order and labels [G]."""
    order = scores.argsort(descending=True, stable=True)
    # One by one, each joins the group whose mean it overlaps most: a chain of steps so small that
    # numpy takes a fraction of torch's time.
    columns = (t[order].cpu().double().numpy() for t in (boxes, scores, labels))
    means, areas = np.zeros((len(order), 4)), np.zeros(len(order))
    weights, sizes, group_labels = (np.zeros(len(order)) for _ in range(3))
    groups = 0
    for box, score, label in zip(*columns, strict=True):
        low = np.maximum(box[:2], means[:groups, :2])
        both = (np.minimum(box[2:], means[:groups, 2:]) - low).clip(0).prod(axis=1)
        union = areas[:groups] + (box[2:] - box[:2]).prod() - both
        overlap = both / np.maximum(union, 1e-300)  # torchvision's RetinaNet keeps empty boxes
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


def build_suppression(cfg: CfgNode, iou_thresh: float) -> Suppression:
    """What TEST.NMS says, at an overlap."""
    nms = cfg.TEST.NMS
    return Suppression(iou_thresh, nms.METHOD, nms.SIGMA, nms.VOTE_THRESH, nms.MIN_SCORE)


def build_postprocess(cfg: CfgNode) -> Postprocess:
    """That of the box head: MODEL.ROI_HEADS and TEST.NMS."""
    heads, convention = cfg.MODEL.ROI_HEADS, convention_of(cfg)
    return Postprocess(
        convention,
        build_suppression(cfg, heads.NMS),
        heads.DETECTIONS_PER_IMG,
        convention.detection_min_size,
    )
