"""Cascade R-CNN (Cai & Vasconcelos, https://arxiv.org/abs/1712.00726).

Box heads in a row, each trained at a higher overlap on the boxes that the one before refined.

Shapes: B images; P proposals and S samples in an image; K classes with background as class 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from yacs.config import CfgNode

from detlite.modeling.backbone import Backbone
from detlite.modeling.sampler import Matcher, label_samples
from detlite.structures import boxes as box_ops
from detlite.structures.instances import GroundTruth, PredictedBoxes, Proposals, Samples

from .box_head import BoxHead, BoxPredictions, build_box_head
from .extractors import Extractor


class CascadeBoxHead(nn.Module):
    """Class-agnostic box heads, each on the boxes of the one before.

    Args:
        stages: the heads.
        ious: the overlap from which a box is foreground in each stage; the first one's samples
            are drawn by it.
    """

    def __init__(self, stages: Sequence[BoxHead], ious: Sequence[float]) -> None:
        super().__init__()
        for number, stage in enumerate(stages):
            self.add_module(str(number), stage)
        self.matchers = [Matcher(iou, iou) for iou in ious]

    @property
    def stages(self) -> list[BoxHead]:
        """The heads in order."""
        return [stage for stage in self.children() if isinstance(stage, BoxHead)]

    @property
    def feature_extractor(self) -> Extractor:
        """The first stage's, whose samples the other heads have."""
        return self.stages[0].feature_extractor

    def losses(
        self, features: list[Tensor], samples: Samples, truth: GroundTruth, sizes: Tensor
    ) -> tuple[dict[str, Tensor], BoxPredictions]:
        """`loss_classifier_stage0`, `loss_box_stage0`, ..., and the first stage's predictions."""
        # The stages share the backbone: together they weigh as much on it as a single head.
        features = [_ScaleGradient.apply(level, 1 / len(self.stages)) for level in features]
        losses: dict[str, Tensor] = {}
        predictions: list[BoxPredictions] = []
        for number, (stage, matcher) in enumerate(zip(self.stages, self.matchers, strict=True)):
            if number:
                boxes = self.stages[number - 1].refine(predictions[-1], samples.boxes, sizes)
                valid = (samples.labels >= 0) & box_ops.has_min_size(boxes, 0)
                samples = label_samples(boxes, matcher(truth, boxes, valid), valid, truth)
            stage_losses, own = stage.losses(features, samples, truth, sizes)
            losses |= {f"{name}_stage{number}": loss for name, loss in stage_losses.items()}
            predictions.append(own)
        return losses, predictions[0]

    def predict(
        self, features: list[Tensor], proposals: Proposals, sizes: Tensor
    ) -> PredictedBoxes:
        """Boxes of the last stage, with the mean of all stages' scores, or of their logits."""
        predictions: list[BoxPredictions] = []
        for number, stage in enumerate(self.stages):
            if number:
                boxes = self.stages[number - 1].refine(predictions[-1], proposals.boxes, sizes)
                proposals = replace(proposals, boxes=boxes)
            predictions.append(stage(features, proposals.boxes, proposals.valid))
        logits = torch.stack([own.logits for own in predictions])
        if self.stages[-1].convention.cascade_mean == "logits":
            scores = logits.mean(dim=0).softmax(dim=1)
        else:
            scores = logits.softmax(dim=2).mean(dim=0)
        return self.stages[-1].decode(predictions[-1], scores, proposals)


# The second stage as the pipeline sees it.
BoxStage = BoxHead | CascadeBoxHead


class _ScaleGradient(torch.autograd.Function):
    """The identity, whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * ctx.factor, None


def build_box_stage(cfg: CfgNode, backbone: Backbone) -> BoxStage:
    """The box head that the config asks for, or the cascade of them."""
    heads, key = cfg.MODEL.ROI_HEADS, "MODEL.ROI_HEADS.CASCADE_IOUS"
    ious, weights = heads.CASCADE_IOUS, heads.CASCADE_BBOX_REG_WEIGHTS
    if not ious:
        return build_box_head(cfg, backbone)
    if len(weights) != len(ious):
        raise ValueError(f"{key} has {len(ious)} stages, CASCADE_BBOX_REG_WEIGHTS {len(weights)}")
    if ious[0] != heads.FG_IOU_THRESHOLD:
        raise ValueError(
            f"{key} begins with {ious[0]}, but MODEL.ROI_HEADS.FG_IOU_THRESHOLD is "
            f"{heads.FG_IOU_THRESHOLD}: both are the IoU of the first stage"
        )
    if not cfg.MODEL.CLS_AGNOSTIC_BBOX_REG:
        raise ValueError(f"{key} needs MODEL.CLS_AGNOSTIC_BBOX_REG True: stages share their boxes")
    for name, on in (("MASK", cfg.MODEL.MASK_ON), ("KEYPOINT", cfg.MODEL.KEYPOINT_ON)):
        if on and cfg.MODEL[f"ROI_{name}_HEAD"].SHARE_BOX_FEATURE_EXTRACTOR:
            raise ValueError(f"{key} needs MODEL.ROI_{name}_HEAD.SHARE_BOX_FEATURE_EXTRACTOR False")
    return CascadeBoxHead([build_box_head(cfg, backbone, own) for own in weights], ious)
