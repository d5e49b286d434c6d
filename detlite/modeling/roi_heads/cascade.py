"""Cascade R-CNN (Cai & Vasconcelos, https://arxiv.org/abs/1712.00726).

A sequence of box heads, each trained at a higher IoU on the boxes that the previous one refined.

Shapes: B images; P proposals and S samples per image; K classes, 0 is background.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from yacs.config import CfgNode

from detlite.modeling.backbone import Backbone
from detlite.modeling.boxes.matcher import Matcher
from detlite.modeling.boxes.sampler import label_samples
from detlite.structures import boxes as box_ops
from detlite.structures.instances import GroundTruth, PredictedBoxes, Proposals, Samples

from .box_head import BoxHead, BoxPredictions, build_box_head, mean_scores
from .extractors import Extractor


class CascadeBoxHead(nn.Module):
    """Class-agnostic box heads, each applied to the boxes of the previous one.

    `ious` are those from which a box is foreground in each stage. The samples of the first stage
    are drawn with its IoU.
    """

    thresholds = None

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
        """Extractor of the first stage, whose samples train the mask and keypoint heads."""
        return self.stages[0].feature_extractor

    def losses(
        self,
        features: list[Tensor],
        samples: Samples,
        truth: GroundTruth,
        sizes: Tensor,
        static_shapes: bool,
    ) -> tuple[dict[str, Tensor], BoxPredictions]:
        """Compute `loss_classifier_stage0`, `loss_box_stage0`, ..., and the first stage's
        predictions; see `BoxHead.losses`."""
        # The stages share the backbone, so average their gradients.
        features = [_ScaleGradient.apply(level, 1 / len(self.stages)) for level in features]
        losses: dict[str, Tensor] = {}
        predictions: list[BoxPredictions] = []
        for number, (stage, matcher) in enumerate(zip(self.stages, self.matchers, strict=True)):
            if number:
                boxes = self.stages[number - 1].refine(predictions[-1], samples.boxes, sizes)
                valid = (samples.labels >= 0) & box_ops.has_min_size(boxes, 0)
                samples = label_samples(boxes, matcher(truth, boxes, valid), valid, truth)
            stage_losses, own = stage.losses(features, samples, truth, sizes, static_shapes)
            losses |= {f"{name}_stage{number}": loss for name, loss in stage_losses.items()}
            predictions.append(own)
        return losses, predictions[0]

    def predict(
        self, features: list[Tensor], proposals: Proposals, sizes: Tensor, static_shapes: bool
    ) -> PredictedBoxes:
        """Predict the boxes of the last stage, with the mean scores (or logits) of all stages."""
        predictions: list[BoxPredictions] = []
        for number, stage in enumerate(self.stages):
            if number:
                boxes = self.stages[number - 1].refine(predictions[-1], proposals.boxes, sizes)
                proposals = replace(proposals, boxes=boxes)
            predictions.append(stage(features, proposals.boxes, proposals.valid, static_shapes))
        last = self.stages[-1]
        return last.decode(predictions[-1], mean_scores(predictions, last.convention), proposals)


class _ScaleGradient(torch.autograd.Function):
    """Return the input; multiply its gradient by a factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * ctx.factor, None


def build_box_heads(cfg: CfgNode, backbone: Backbone) -> BoxHead | CascadeBoxHead:
    """Build the box head, or a cascade of them if MODEL.ROI_HEADS.CASCADE_IOUS is set."""
    heads, key = cfg.MODEL.ROI_HEADS, "MODEL.ROI_HEADS.CASCADE_IOUS"
    ious, weights = heads.CASCADE_IOUS, heads.CASCADE_BBOX_REG_WEIGHTS
    if not ious:
        return build_box_head(cfg, backbone)
    if heads.DYNAMIC:
        raise ValueError(f"MODEL.ROI_HEADS.DYNAMIC is for a single box head: set {key} ()")
    if cfg.TEST.BOX_PASSES > 1:
        raise ValueError(f"TEST.BOX_PASSES is for a single box head: set it to 1, or {key} ()")
    if len(weights) != len(ious):
        raise ValueError(
            f"{key} has {len(ious)} stages, but CASCADE_BBOX_REG_WEIGHTS has {len(weights)}"
        )
    if ious[0] != heads.FG_IOU_THRESHOLD:
        raise ValueError(
            f"{key} starts with {ious[0]}, but MODEL.ROI_HEADS.FG_IOU_THRESHOLD is "
            f"{heads.FG_IOU_THRESHOLD}: both are the IoU of the first stage"
        )
    if not cfg.MODEL.CLS_AGNOSTIC_BBOX_REG:
        raise ValueError(f"{key} needs MODEL.CLS_AGNOSTIC_BBOX_REG True: stages share their boxes")
    for name, on in (("MASK", cfg.MODEL.MASK_ON), ("KEYPOINT", cfg.MODEL.KEYPOINT_ON)):
        if on and cfg.MODEL[f"ROI_{name}_HEAD"].SHARE_BOX_FEATURE_EXTRACTOR:
            raise ValueError(f"{key} needs MODEL.ROI_{name}_HEAD.SHARE_BOX_FEATURE_EXTRACTOR False")
    return CascadeBoxHead([build_box_head(cfg, backbone, own) for own in weights], ious)
