"""Detections of two models, matched one to one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from pycocotools import mask as rle_codec
from torch import Tensor

from detlite.structures.instances import Detections


@dataclass
class Difference:
    """The largest differences between detections matched one to one."""

    count: int = 0
    unmatched: int = 0
    box: float = 0.0  # pixels
    score: float = 0.0
    mask: float = 0.0  # probability
    pixels: float = 0.0  # of a picture's pasted masks, as a fraction of their area
    keypoint: float = 0.0  # pixels, of those with one highest cell
    keypoint_score: float = 0.0  # logits of torchvision, probabilities of detectron2
    # keypoints elsewhere in the box, where their map is as high, or on a map of another size
    ties: int = 0

    def merge(self, other: Difference) -> None:
        """Takes the larger of each."""
        self.count += other.count
        self.unmatched += other.unmatched
        self.ties += other.ties
        for name in ("box", "score", "mask", "pixels", "keypoint", "keypoint_score"):
            setattr(self, name, max(getattr(self, name), getattr(other, name)))


def as_dict(found: Detections) -> dict[str, Tensor]:
    """An image's detections as `compare` takes them."""
    fields = {
        "boxes": found.boxes,
        "scores": found.scores,
        "labels": found.labels,
        "mask_probs": found.mask_probs,
        "keypoints": found.keypoints,
        "keypoints_scores": found.keypoint_scores,
    }
    return {name: value for name, value in fields.items() if value is not None}


def compare(ours: dict[str, Any], theirs: dict[str, Any]) -> Difference:
    """Matches each of their detections to the nearest of ours with its label.

    Both hold `boxes` [N, 4], `scores`, `labels`, and perhaps `mask_probs` [N, M, M] or [N, H, W],
    `rles` and `keypoints` [N, P, 3], with `map_sizes` [N, 2] to which their maps were enlarged.
    """
    result = Difference(count=len(theirs["boxes"]))
    distance = (ours["boxes"][None] - theirs["boxes"][:, None]).abs().amax(2)
    distance = distance + (ours["scores"][None] - theirs["scores"][:, None]).abs()
    distance[theirs["labels"][:, None] != ours["labels"][None]] = float("inf")
    pairs: list[tuple[int, int]] = []
    for flat in distance.flatten().argsort().tolist():
        their, our = divmod(flat, distance.shape[1])
        if distance[their, our] > 1:
            break
        if all(their != t and our != o for t, o in pairs):
            pairs.append((their, our))
    result.unmatched = len(theirs["boxes"]) + len(ours["boxes"]) - 2 * len(pairs)
    if not pairs:
        return result
    their, our = (torch.tensor(index) for index in zip(*pairs, strict=True))

    def largest(name: str) -> float:
        return (ours[name][our] - theirs[name][their]).abs().max().item()

    result.box, result.score = largest("boxes"), largest("scores")
    if "mask_probs" in theirs:
        result.mask = largest("mask_probs")
    if "keypoints" in theirs:
        moved = (ours["keypoints"][our] - theirs["keypoints"][their])[..., :2].abs().amax(-1)
        scores = (ours["keypoints_scores"][our] - theirs["keypoints_scores"][their]).abs()
        # Sides are rounded up to whole pixels: one may be whole up to the rounding of its sums.
        resized = torch.zeros(len(pairs), dtype=torch.bool)
        if "map_sizes" in theirs:
            resized = (ours["map_sizes"][our] != theirs["map_sizes"][their]).any(1)
        result.keypoint_score = scores[~resized].max().item()
        # A map may be as high elsewhere, up to the rounding of its sums.
        tie = (moved > 0.5) | resized[:, None]
        result.ties = int(tie.sum())
        result.keypoint = moved[~tie].max().item()
    if "rles" in theirs:
        differing, area = 0, 0
        for t, o in pairs:
            both = [theirs["rles"][t], ours["rles"][o]]
            common = int(rle_codec.area(rle_codec.merge(both, intersect=True)))
            differing += int(rle_codec.area(rle_codec.merge(both))) - common
            area += int(rle_codec.area(both[0]))
        result.pixels = differing / max(area, 1)
    return result
