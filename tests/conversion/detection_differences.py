"""Compare the detections of two models, matched one to one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from pycocotools import mask as rle_codec
from torch import Tensor

from detlite.modeling.detector import Detector
from detlite.ops import paste_masks
from detlite.structures import boxes as box_ops
from detlite.structures.instances import Detections
from detlite.structures.masks.pasting import paste_boxes, paste_probabilities
from detlite.structures.object_fields import move_points, resizing


@dataclass
class DetectionDifference:
    """The largest differences between matched detections."""

    count: int = 0
    unmatched: int = 0
    box: float = 0.0  # pixels
    score: float = 0.0
    mask: float = 0.0  # probability
    pixels: float = 0.0  # of the pasted masks of an image, as a fraction of their area
    keypoint: float = 0.0  # pixels, without ties
    keypoint_score: float = 0.0  # logits of torchvision, probabilities of detectron2
    # Keypoints at another maximum of their heat map, or on a map of another size.
    ties: int = 0

    def merge(self, other: DetectionDifference) -> None:
        """Add the counts and keep the larger differences."""
        self.count += other.count
        self.unmatched += other.unmatched
        self.ties += other.ties
        for name in ("box", "score", "mask", "pixels", "keypoint", "keypoint_score"):
            setattr(self, name, max(getattr(self, name), getattr(other, name)))

    def check(self, count: int, **limits: float) -> None:
        """Assert at least `count` detections, all matched, and differences below the limits."""
        assert self.count >= count
        assert self.unmatched == 0
        for name, limit in limits.items():
            assert getattr(self, name) < limit, name


def as_dict(detections: Detections) -> dict[str, Any]:
    """Return the detections of an image in the format of `compare`."""
    fields = {
        "boxes": detections.boxes,
        "scores": detections.scores,
        "labels": detections.labels,
        "mask_probs": detections.mask_probs,
        "keypoints": detections.keypoints,
        "keypoints_scores": detections.keypoint_scores,
    }
    return {name: value for name, value in fields.items() if value is not None}


def in_original_image(
    model: Detector,
    detections: dict[str, Any],
    input_size: tuple[int, int],
    size: tuple[int, int],
    paste: bool = False,
) -> dict[str, Any]:
    """Convert detections to coordinates of the original image, and add "rles" of the masks.

    Args:
        model: the detector.
        detections: in the format of `compare`.
        input_size, size: (height, width) of the network input and of the original image.
        paste: replace "mask_probs" by probabilities [N, H, W] instead of adding "rles".
    """
    result = dict(detections)
    result["boxes"] = box_ops.rescale(result["boxes"], input_size, size, model.convention)
    if "mask_probs" in result:
        probs = result["mask_probs"]
        boxes = paste_boxes(result["boxes"], probs.shape[-1], model.convention)
        if paste:
            result["mask_probs"] = paste_probabilities(probs, boxes, size)
        else:
            result["rles"] = paste_masks(probs, boxes, size, model.mask_threshold)
    if "keypoints" in result:
        result["keypoints"] = move_points(result["keypoints"], resizing(input_size, size))
    return result


def compare(detections: dict[str, Any], expected: dict[str, Any]) -> DetectionDifference:
    """Match each expected detection to the nearest detection with its label.

    Both have `boxes` [N, 4], `scores` and `labels`, and optionally `mask_probs` [N, M, M] or
    [N, H, W], `rles`, and `keypoints` [N, P, 3] with `map_sizes` [N, 2] of their heat maps.
    """
    result = DetectionDifference(count=len(expected["boxes"]))
    distance = (detections["boxes"][None] - expected["boxes"][:, None]).abs().amax(2)
    distance = distance + (detections["scores"][None] - expected["scores"][:, None]).abs()
    distance[expected["labels"][:, None] != detections["labels"][None]] = float("inf")
    pairs: list[tuple[int, int]] = []
    for flat in distance.flatten().argsort().tolist():
        e, d = divmod(flat, distance.shape[1])
        if distance[e, d] > 1:
            break
        if all(e != other_e and d != other_d for other_e, other_d in pairs):
            pairs.append((e, d))
    result.unmatched = len(expected["boxes"]) + len(detections["boxes"]) - 2 * len(pairs)
    if not pairs:
        return result
    e, d = (torch.tensor(index) for index in zip(*pairs, strict=True))

    def difference(name: str) -> Tensor:
        return (detections[name][d] - expected[name][e]).abs()

    result.box, result.score = difference("boxes").max().item(), difference("scores").max().item()
    if "mask_probs" in expected:
        result.mask = difference("mask_probs").max().item()
    if "keypoints" in expected:
        moved = difference("keypoints")[..., :2].amax(-1)
        scores = difference("keypoints_scores")
        # Sides of heat maps are rounded up, so that rounding errors may change them.
        resized = torch.zeros(len(pairs), dtype=torch.bool)
        if "map_sizes" in expected:
            resized = (difference("map_sizes") != 0).any(1)
        result.keypoint_score = scores[~resized].max().item()
        # Rounding errors may also decide between two maxima.
        tie = (moved > 0.5) | resized[:, None]
        result.ties = int(tie.sum())
        result.keypoint = moved[~tie].max().item()
    if "rles" in expected:
        differing, area = 0, 0
        for i, j in pairs:
            both = [expected["rles"][i], detections["rles"][j]]
            common = int(rle_codec.area(rle_codec.merge(both, intersect=True)))
            differing += int(rle_codec.area(rle_codec.merge(both))) - common
            area += int(rle_codec.area(both[0]))
        result.pixels = differing / max(area, 1)
    return result
