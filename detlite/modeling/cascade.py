"""Cascade R-CNN (Cai & Vasconcelos, https://arxiv.org/abs/1712.00726).

Box heads in a row, each trained at a higher overlap on the boxes that the one before refined.

Shapes: K classes with background as class 0, S stages; R proposals over all images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from yacs.config import CfgNode

from ..structures import boxes as box_ops
from .backbone import Backbone
from .box_head import BoxHead, build_box_head
from .keypoint_head import KeypointHead, build_keypoint_head
from .mask_head import MaskHead, build_mask_head
from .matching import match
from .roi_heads import ProposalSampling, RoIHeads
from .suppression import DetectionLimits, Scored


class CascadeRoIHeads(RoIHeads):
    """S box heads, and a mask head and a keypoint head or None.

    Args:
        stages: class-agnostic box heads.
        ious: the overlap from which a box is foreground in each stage; the first is that of
            `sampling`.
    """

    def __init__(
        self,
        stages: Sequence[BoxHead],
        ious: Sequence[float],
        mask: MaskHead | None,
        keypoint: KeypointHead | None,
        *,
        sampling: ProposalSampling,
    ) -> None:
        super().__init__(nn.ModuleList(stages), mask, keypoint, sampling=sampling)
        self.ious = tuple(ious)

    def _box_losses(
        self,
        features: list[Tensor],
        boxes: list[Tensor],
        matched: list[dict[str, Tensor]],
        targets: list[dict[str, Any]],
        image_sizes: list[tuple[int, int]],
    ) -> tuple[dict[str, Tensor], Tensor]:
        losses: dict[str, Tensor] = {}
        stages: Any = self.box
        # The stages share the backbone: together they weigh as much on it as a single head.
        features = [_ScaleGradient.apply(level, 1 / len(stages)) for level in features]
        for number, (stage, iou) in enumerate(zip(stages, self.ious, strict=True)):
            if number:
                matched = [_rematch(*pair, iou) for pair in zip(boxes, targets, strict=True)]
            x = stage.feature_extractor(features, boxes)
            logits, deltas = stage.predictor(x)
            for name, loss in stage.losses(logits, deltas, boxes, matched).items():
                losses[f"{name}_stage{number}"] = loss
            boxes = stage.refine(deltas, boxes, image_sizes)
            boxes = [own[box_ops.at_least(own, 0)] for own in boxes]
        return losses, x

    def candidates(
        self,
        features: list[Tensor],
        proposals: list[Tensor],
        image_sizes: list[tuple[int, int]],
        limits: DetectionLimits,
    ) -> list[Scored]:
        """Boxes of the last stage, with the mean of all stages' scores."""
        stages: Any = self.box
        scores = []
        for number, stage in enumerate(stages, start=1):
            stage_scores, deltas = stage.predict(stage.feature_extractor(features, proposals))
            scores.append(stage_scores)
            if number < len(stages):
                proposals = stage.refine(deltas, proposals, image_sizes)
        mean = torch.stack(scores).mean(dim=0)
        return stages[-1].candidates(mean, deltas, proposals, image_sizes, limits)


class _ScaleGradient(torch.autograd.Function):
    """The identity, whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * ctx.factor, None


def _rematch(boxes: Tensor, target: dict[str, Any], iou: float) -> dict[str, Tensor]:
    """`labels`, `boxes` and `matched` of all boxes [R, 4] of an image; none is sampled away."""
    truth = target["boxes"]
    matched = match(box_ops.iou(truth, boxes), iou, iou)
    foreground = matched >= 0
    labels, wanted = torch.zeros_like(matched), torch.zeros_like(boxes)
    labels[foreground] = target["labels"][matched[foreground]]
    wanted[foreground] = truth[matched[foreground]]
    return {"labels": labels, "boxes": wanted, "matched": matched}


def build_roi_heads(cfg: CfgNode, backbone: Backbone) -> RoIHeads:
    """The heads that the config asks for: one box head, or a cascade of them.

    Raises:
        ValueError: keys of a cascade that do not fit together.
    """
    heads = cfg.MODEL.ROI_HEADS
    ious, weights = heads.CASCADE_IOUS, heads.CASCADE_BBOX_REG_WEIGHTS
    sampling = ProposalSampling(
        foreground=heads.FG_IOU_THRESHOLD,
        background=heads.BG_IOU_THRESHOLD,
        per_image=heads.BATCH_SIZE_PER_IMAGE,
        positive_fraction=heads.POSITIVE_FRACTION,
    )
    boxes = [build_box_head(cfg, backbone, own) for own in (weights if ious else [None])]
    extractor = boxes[0].feature_extractor
    mask = build_mask_head(cfg, backbone, extractor) if cfg.MODEL.MASK_ON else None
    keypoint = build_keypoint_head(cfg, backbone, extractor) if cfg.MODEL.KEYPOINT_ON else None
    if not ious:
        return RoIHeads(boxes[0], mask, keypoint, sampling=sampling)
    key = "MODEL.ROI_HEADS.CASCADE_IOUS"
    if len(weights) != len(ious):
        raise ValueError(f"{key} has {len(ious)} stages, CASCADE_BBOX_REG_WEIGHTS {len(weights)}")
    if ious[0] != heads.FG_IOU_THRESHOLD:
        raise ValueError(
            f"{key} begins with {ious[0]}, but MODEL.ROI_HEADS.FG_IOU_THRESHOLD is "
            f"{heads.FG_IOU_THRESHOLD}: both are the IoU of the first stage"
        )
    if not cfg.MODEL.CLS_AGNOSTIC_BBOX_REG:
        raise ValueError(f"{key} needs MODEL.CLS_AGNOSTIC_BBOX_REG True: stages share their boxes")
    for name, head in (("ROI_MASK_HEAD", mask), ("ROI_KEYPOINT_HEAD", keypoint)):
        if head is not None and head.feature_extractor is None:
            raise ValueError(f"{key} needs MODEL.{name}.SHARE_BOX_FEATURE_EXTRACTOR False")
    return CascadeRoIHeads(boxes, ious, mask, keypoint, sampling=sampling)
