"""Anchor assignment: the anchors that a training step assigns to each object.

Shapes: B images, L levels, N anchors over all levels, G objects in an image, padded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from detlite.modeling.boxes.matcher import IGNORE
from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.preprocessing import prepare_targets
from detlite.modeling.retinanet import RetinaNet
from detlite.structures import boxes as box_ops


@dataclass(frozen=True)
class AnchorMatches:
    """Anchors and objects of a batch, in pixels of the network input.

    Attributes:
        strides: of the L levels.
        sides: square roots of the anchor areas of each level.
        anchors: float32 [N, 4] xyxy.
        levels: int64 [N], the level of each anchor.
        matched: int64 [B, N], the object assigned to each anchor; negative: background or ignored.
        overlaps: float32 [B, G], the highest IoU of each object with an anchor that is not ignored;
            0 at padding.
        foreground: the IoU from which an anchor is foreground.
    """

    strides: list[int]
    sides: list[list[int]]
    anchors: Tensor
    levels: Tensor
    matched: Tensor
    overlaps: Tensor
    foreground: float

    def counts(self, image: int) -> Tensor:
        """Return the number of anchors of each level assigned to each object: int64 [G, L]."""
        objects, levels = self.overlaps.shape[1], len(self.strides)
        assigned = self.matched[image] >= 0
        cells = self.matched[image][assigned] * levels + self.levels[assigned]
        return torch.bincount(cells, minlength=objects * levels).view(objects, levels)


@torch.no_grad()
def match_anchors(
    model: DetectionModel, images: Sequence[Tensor], targets: Sequence[dict[str, Any]]
) -> AnchorMatches | None:
    """Match anchors as a training step of `model` does before it samples them.

    Args:
        model: on the CPU; its weights do not matter.
        images, targets: a batch in the format of the model.

    Returns:
        None for a model with precomputed proposals, which has no anchors.

    Raises:
        TypeError, ValueError: invalid images or targets.
    """
    head: Any = model if isinstance(model, RetinaNet) else getattr(model, "rpn", None)
    if head is None:
        return None
    generator, matcher, straddle = (
        head.anchor_generator,
        head.matcher,
        getattr(head, "straddle", -1),
    )
    truth = prepare_targets(targets, images, model.num_classes)
    batch = model.normalizer(images)
    height, width = batch.pixels.shape[-2:]
    strides = list(generator.strides)
    per_level = generator([(-(-height // stride), -(-width // stride)) for stride in strides])
    anchors = torch.cat(per_level)
    levels = torch.cat([torch.full((len(level),), n) for n, level in enumerate(per_level)])
    matched = matcher(truth, anchors)
    usable = torch.ones_like(matched, dtype=torch.bool)
    if straddle >= 0:
        usable = box_ops.inside(anchors, batch.sizes, straddle, model.convention).expand_as(matched)
        matched = torch.where(usable, matched, IGNORE)
    overlaps = torch.stack([
        box_ops.iou(boxes, anchors).masked_fill(~inside, 0).amax(dim=1)
        for boxes, inside in zip(truth.boxes, usable, strict=True)
    ])  # fmt: skip
    overlaps = torch.where(truth.valid, overlaps, 0)
    sides = [_sides(generator.get_buffer(f"cell{level}")) for level in range(len(strides))]
    return AnchorMatches(strides, sides, anchors, levels, matched, overlaps, matcher.foreground)


def _sides(cell: Tensor) -> list[int]:
    """Return the square roots of the areas of anchors [A, 4]."""
    return sorted({round(float(side)) for side in (cell[:, 2:] - cell[:, :2]).prod(dim=1).sqrt()})
