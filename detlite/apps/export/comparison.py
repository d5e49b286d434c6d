"""What one detector finds beside another that should be the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from detlite.modeling.detection_model import DetectionModel
from detlite.structures.instances import Detections

_NEAR = 1.0  # pixels: boxes of one object differ by less


@dataclass(frozen=True)
class Difference:
    """The largest differences between detections of the same objects.

    Attributes:
        objects: how many were compared.
        unmatched: how many only one of the two detectors found.
        boxes: in pixels of the network's input.
        scores, masks: of probabilities.
        keypoints: in pixels.
    """

    objects: int = 0
    unmatched: int = 0
    boxes: float = 0.0
    scores: float = 0.0
    masks: float = 0.0
    keypoints: float = 0.0

    def __or__(self, other: Difference) -> Difference:
        """Of both together."""
        return Difference(
            self.objects + other.objects,
            self.unmatched + other.unmatched,
            max(self.boxes, other.boxes),
            max(self.scores, other.scores),
            max(self.masks, other.masks),
            max(self.keypoints, other.keypoints),
        )

    def within(self, boxes: float, scores: float, masks: float) -> bool:
        """Whether nothing is unmatched and no difference larger; `boxes` is for keypoints too."""
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
    """The difference between two detectors over images [3, H, W], one by one.

    `proposals` are those of each image for a Fast R-CNN.
    """
    difference = Difference()
    for index, image in enumerate(images):
        given = None if proposals is None else [proposals[index]]
        [one], [other] = left.detect([image], given), right.detect([image], given)
        difference |= compare(one, other)
    return difference


def compare(left: Detections, right: Detections) -> Difference:
    """The difference between two sets of detections [D] of an image.

    Each box has the nearest free one of its label as a partner: of equal scores the order may
    differ.
    """
    free = torch.ones(len(right.boxes), dtype=torch.bool)
    pairs: list[tuple[int, int]] = []
    for index, (box, label) in enumerate(zip(left.boxes, left.labels, strict=True)):
        distance = (right.boxes - box).abs().amax(dim=1)
        distance = torch.where(free & (right.labels == label), distance, torch.inf)
        if len(distance) and distance.min() < _NEAR:
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
        _largest(one.boxes, other.boxes),
        _largest(one.scores, other.scores),
        _largest(one.mask_probs, other.mask_probs),
        _largest(one.keypoints, other.keypoints),
    )


def _largest(left: Tensor | None, right: Tensor | None) -> float:
    return 0.0 if left is None or right is None else float((left - right).abs().max())
