"""Compare the detections of two detectors that should agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
        return Difference(
            self.objects + other.objects,
            self.unmatched + other.unmatched,
            self.borderline + other.borderline,
            max(self.boxes, other.boxes),
            max(self.scores, other.scores),
            max(self.masks, other.masks),
            max(self.keypoints, other.keypoints),
        )

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
    """Compare two detectors on images [3, H, W], one by one.

    Args:
        left, right: the detectors.
        images: network inputs.
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
    free = torch.ones(len(right.boxes), dtype=torch.bool)
    pairs: list[tuple[int, int]] = []
    for index, (box, label) in enumerate(zip(left.boxes, left.labels, strict=True)):
        distance = (right.boxes - box).abs().amax(dim=1)
        distance = torch.where(free & (right.labels == label), distance, torch.inf)
        if len(distance) and distance.min() < _MATCH_DISTANCE:
            partner = int(distance.argmin())
            free[partner] = False
            pairs.append((index, partner))
    matched = {index for index, _ in pairs}
    alone = [n not in matched for n in range(len(left.boxes))], free.tolist()
    unmatched = sum(map(sum, alone))
    borderline = 0
    for own, other, flags in ((left, right, alone[0]), (right, left, alone[1])):
        full = max_objects is not None and len(other.boxes) >= max_objects
        end = max(threshold, float(other.scores.min()) if full else 0.0)
        borderline += int((own.scores[torch.tensor(flags, dtype=torch.bool)] < end + _MARGIN).sum())
    unmatched -= borderline
    if not pairs:
        return Difference(unmatched=unmatched, borderline=borderline)
    ours, theirs = torch.tensor(pairs).unbind(dim=1)
    one, other = left[ours], right[theirs]
    largest = 1.0 if one.features is None else float(one.features.abs().max().clamp(min=1e-6))
    return Difference(
        len(pairs),
        unmatched,
        borderline,
        max(
            _max_difference(one.boxes, other.boxes),
            _max_difference(one.mask_boxes, other.mask_boxes),
        ),
        max(
            _max_difference(one.scores, other.scores),
            _max_difference(one.class_scores, other.class_scores),
            _max_difference(one.features, other.features) / largest,
        ),
        _max_difference(one.mask_probs, other.mask_probs),
        _max_difference(one.keypoints, other.keypoints),
    )


def _max_difference(left: Tensor | None, right: Tensor | None) -> float:
    return 0.0 if left is None or right is None else float((left - right).abs().max())
