"""Compare the detections of two detectors that should agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from detlite.modeling.detection_model import DetectionModel
from detlite.structures.instances import Detections

_MATCH_DISTANCE = 1.0  # maximum difference of matched boxes in pixels


@dataclass(frozen=True)
class Difference:
    """Largest differences between matched detections.

    Attributes:
        objects: number of matched detections.
        unmatched: number of detections of only one detector.
        boxes, keypoints: in pixels of the network input.
        scores, masks: of probabilities.
    """

    objects: int = 0
    unmatched: int = 0
    boxes: float = 0.0
    scores: float = 0.0
    masks: float = 0.0
    keypoints: float = 0.0

    def __or__(self, other: Difference) -> Difference:
        """Combine two differences."""
        return Difference(
            self.objects + other.objects,
            self.unmatched + other.unmatched,
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
) -> Difference:
    """Compare two detectors on images [3, H, W], one by one.

    A Fast R-CNN also needs `proposals` of each image.
    """
    difference = Difference()
    for index, image in enumerate(images):
        own = None if proposals is None else [proposals[index]]
        [one], [other] = left.detect([image], own), right.detect([image], own)
        difference |= compare(one, other)
    return difference


def compare(left: Detections, right: Detections) -> Difference:
    """Compare two sets of detections [D] of an image.

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
    unmatched = len(left.boxes) + len(right.boxes) - 2 * len(pairs)
    if not pairs:
        return Difference(unmatched=unmatched)
    ours, theirs = torch.tensor(pairs).unbind(dim=1)
    one, other = left[ours], right[theirs]
    return Difference(
        len(pairs),
        unmatched,
        _max_difference(one.boxes, other.boxes),
        _max_difference(one.scores, other.scores),
        _max_difference(one.mask_probs, other.mask_probs),
        _max_difference(one.keypoints, other.keypoints),
    )


def _max_difference(left: Tensor | None, right: Tensor | None) -> float:
    return 0.0 if left is None or right is None else float((left - right).abs().max())
