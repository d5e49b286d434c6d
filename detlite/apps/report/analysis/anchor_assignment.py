"""Which anchors a model is trained on as foreground, and which objects get none.

Shapes: B images, L levels, N anchors over all levels, G objects in an image, padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.preprocessing import prepare_targets
from detlite.modeling.proposal_network import ProposalNetwork
from detlite.modeling.rcnn import GeneralizedRCNN
from detlite.modeling.retinanet import RetinaNet
from detlite.modeling.sampler import IGNORE
from detlite.structures import boxes as box_ops


@dataclass(frozen=True)
class AnchorMatches:
    """The anchors of a batch beside its objects, in pixels of the network's input.

    Attributes:
        strides: of the L levels.
        anchors: float32 [N, 4] xyxy.
        levels: int64 [N], the level of each.
        matched: int64 [B, N], the object that an anchor is trained to find, or less than 0.
        overlaps: float32 [B, G], the highest IoU of each object with an anchor that may be
            trained on; 0 at padding.
        foreground: IoU from which an anchor is foreground; below it only an object's best is.
    """

    strides: list[int]
    anchors: Tensor
    levels: Tensor
    matched: Tensor
    overlaps: Tensor
    foreground: float

    def counts(self, image: int) -> Tensor:
        """How many anchors of each level find each object: int64 [G, L]."""
        objects, levels = self.overlaps.shape[1], len(self.strides)
        found = self.matched[image] >= 0
        places = self.matched[image][found] * levels + self.levels[found]
        return torch.bincount(places, minlength=objects * levels).view(objects, levels)


@torch.no_grad()
def match_anchors(
    model: DetectionModel, images: Sequence[Tensor], targets: Sequence[dict[str, Any]]
) -> AnchorMatches | None:
    """Matches anchors as a training step of `model` does, before any are drawn.

    Args:
        model: on the CPU; its weights do not matter.
        images, targets: a batch, as the model takes them.

    Returns:
        None of a model without anchors, which is given its proposals.

    Raises:
        TypeError, ValueError: images or targets that do not fit.
    """
    if isinstance(model, RetinaNet):
        generator, matcher, straddle = model.anchor_generator, model.matcher, -1.0
    elif isinstance(model, (GeneralizedRCNN, ProposalNetwork)) and model.rpn is not None:
        rpn = model.rpn
        generator, matcher, straddle = rpn.anchor_generator, rpn.matcher, rpn.straddle
    else:
        return None
    truth = prepare_targets(targets, images, model.num_classes)
    batch = model.normalizer(images)
    height, width = batch.pixels.shape[-2:]
    strides = list(generator.strides)
    own = generator([(-(-height // stride), -(-width // stride)) for stride in strides])
    anchors = torch.cat(own)
    levels = torch.cat([torch.full((len(part),), n) for n, part in enumerate(own)])
    matched = matcher(truth, anchors)
    seen = torch.ones_like(matched, dtype=torch.bool)
    if straddle >= 0:
        seen = box_ops.inside(anchors, batch.sizes, straddle, model.convention).expand_as(matched)
        matched = torch.where(seen, matched, IGNORE)
    overlaps = torch.stack([
        box_ops.iou(boxes, anchors).masked_fill(~inside, 0).amax(dim=1)
        for boxes, inside in zip(truth.boxes, seen, strict=True)
    ])  # fmt: skip
    overlaps = torch.where(truth.valid, overlaps, 0)
    return AnchorMatches(strides, anchors, levels, matched, overlaps, matcher.foreground)
