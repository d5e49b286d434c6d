"""Compare the detections of two detectors that should agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from detlite.modeling.detection_model import DetectionModel
from detlite.structures.instances import Detections

_MATCH_DISTANCE = 1.0  # maximum difference of matched boxes in pixels
_MARGIN = 0.01  # of scores, within which rounding decides if an object is reported


@dataclass(frozen=True)
class Difference:
    """Largest differences between matched detections.

    Attributes:
        objects: number of matched detections.
        unmatched: number of detections of only one detector.
        borderline: number of further ones, whose score is close to where the other detector ends.
        boxes, keypoints: in pixels of the network input.
        scores, masks: of probabilities; `scores` also of features, relative to their maximum.
    """

    objects: int = 0
    unmatched: int = 0
    borderline: int = 0
    boxes: float = 0.0
    scores: float = 0.0
    masks: float = 0.0
    keypoints: float = 0.0

    def __or__(self, other: Difference) -> Difference:
        """Combine two differences."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Difference(*(a + b if isinstance(a, int) else max(a, b) for a, b in pairs))

    def within(self, boxes: float, scores: float, masks: float) -> bool:
        """True if all detections match within these limits; `boxes` also limits keypoints."""
        pixels = max(self.boxes, self.keypoints)
        return not self.unmatched and (
            pixels <= boxes and self.scores <= scores and self.masks <= masks
        )


def compare_detectors(
    left: DetectionModel,
    right: DetectionModel,
    images: Sequence[Tensor],
    proposals: Sequence[Tensor] | None = None,
    threshold: float = 0.0,
    max_objects: int | None = None,
) -> Difference:
    """Compare two detectors on network inputs [C, H, W], one by one.

    Args:
        proposals: of each image, for a Fast R-CNN.
        threshold: score from which both report objects.
        max_objects: number of objects of an image that both report at most.
    """
    difference = Difference()
    for index, image in enumerate(images):
        own = None if proposals is None else [proposals[index]]
        [one], [other] = left.detect([image], own), right.detect([image], own)
        difference |= compare(one, other, threshold, max_objects)
    return difference


def compare(
    left: Detections, right: Detections, threshold: float = 0.0, max_objects: int | None = None
) -> Difference:
    """Compare two sets of detections [D] of an image, see `compare_detectors`.

    Each box is matched to the nearest unmatched box of its label, because the order of equal scores
    may differ.
    """
    partners = torch.full((len(left.boxes),), -1)
    free = torch.ones(len(right.boxes), dtype=torch.bool)
    for index, (box, label) in enumerate(zip(left.boxes, left.labels, strict=True)):
        distance = (right.boxes - box).abs().amax(dim=1)
        distance = torch.where(free & (right.labels == label), distance, torch.inf)
        if (distance < _MATCH_DISTANCE).any():
            partners[index] = distance.argmin()
            free[partners[index]] = False
    borderline = unmatched = 0
    for own, other, alone in ((left, right, partners < 0), (right, left, free)):
        full = max_objects is not None and len(other.boxes) >= max_objects
        end = max(threshold, float(other.scores.min()) if full else 0.0)
        near_end = own.scores[alone] < end + _MARGIN
        borderline += int(near_end.sum())
        unmatched += int((~near_end).sum())
    one, two = left[partners >= 0], right[partners[partners >= 0]]
    features = _max_difference(one.features, two.features)
    if features:
        assert one.features is not None
        features /= float(one.features.abs().max().clamp(min=1e-6))
    boxes = _max_difference(one.boxes, two.boxes), _max_difference(one.mask_boxes, two.mask_boxes)
    scores = _max_difference(one.scores, two.scores)
    class_scores = _max_difference(one.class_scores, two.class_scores)
    return Difference(
        len(one.boxes),
        unmatched,
        borderline,
        max(boxes),
        max(scores, class_scores, features),
        _max_difference(one.mask_probs, two.mask_probs),
        _max_difference(one.keypoints, two.keypoints),
    )


def _max_difference(left: Tensor | None, right: Tensor | None) -> float:
    if left is None or right is None or not left.numel():
        return 0.0
    return float((left - right).abs().max())
