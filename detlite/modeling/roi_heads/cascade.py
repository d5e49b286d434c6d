"""Cascades of box heads (Cascade R-CNN, https://arxiv.org/abs/1712.00726).

Each head, or each pass of one head, is trained at a higher IoU on the boxes that the previous one
refined.

Shapes: B images; P proposals and S samples per image; K classes, 0 is background.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from yacs.config import CfgNode

from detlite.conventions import Convention
from detlite.modeling.backbone import Backbone
from detlite.modeling.boxes.matcher import Matcher
from detlite.modeling.boxes.sampler import label_samples
from detlite.structures import boxes as box_ops
from detlite.structures.instances import GroundTruth, PredictedBoxes, Proposals, Samples

from .box_head import BoxHead, BoxPredictions, box_head_options
from .extractors import Extractor


class Cascade:
    """Box heads applied in order, each to the boxes that the previous one refined.

    Attributes:
        stages: the heads in order.
        ious: the foreground IoU threshold of each stage. The sampler must use the first one.
        score_thresh: predicted boxes need a higher score.
        skip_below: fraction of `score_thresh`. The later stages skip a proposal if its mean
            foreground probability in the earlier ones is lower.
    """

    stages: Any
    ious: Sequence[float]
    score_thresh: float
    skip_below = 0.0

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
        stages = self.stages
        # The stages share the backbone, so average their gradients there. Gradients of a head that
        # is used in several passes add up.
        features = [_ScaleGradient.apply(level, 1 / len(stages)) for level in features]
        losses: dict[str, Tensor] = {}
        predictions: list[BoxPredictions] = []
        for number, (stage, iou) in enumerate(zip(stages, self.ious, strict=True)):
            if number:
                boxes = stages[number - 1].refine(predictions[-1], samples.boxes, sizes)
                valid = (samples.labels >= 0) & box_ops.has_min_size(boxes, 0)
                matched = Matcher(iou, iou)(truth, boxes, valid)
                samples = label_samples(boxes, matched, valid, truth)
            predicted = stage(features, samples.boxes, samples.labels >= 0, static_shapes)
            stage_losses = stage.compare(predicted, samples, truth)
            losses |= {f"{name}_stage{number}": loss for name, loss in stage_losses.items()}
            predictions.append(predicted)
        return losses, predictions[0]

    def predict(
        self, features: list[Tensor], proposals: Proposals, sizes: Tensor, static_shapes: bool
    ) -> PredictedBoxes:
        """Refine proposals [B, P] for every class that scores above the threshold.

        The boxes are from the last stage. Scores are averaged over the stages
        (`Convention.cascade_mean`).
        """
        first, last = self.stages[0], self.stages[-1]
        predictions = first(features, proposals.boxes, proposals.valid, static_shapes)
        logits = [predictions.packing.unpack(predictions.logits)]  # of each stage, [B, P, K]
        for previous, stage in pairwise(self.stages):
            boxes, valid = previous.refine(predictions, proposals.boxes, sizes), proposals.valid
            if self.skip_below:
                background = mean_scores(logits, last.convention)[..., 0]
                valid = valid & (1 - background >= self.skip_below * self.score_thresh)
            proposals = replace(proposals, boxes=boxes, valid=valid)
            predictions = stage(features, boxes, valid, static_shapes)
            logits.append(predictions.packing.unpack(predictions.logits))
        rows = [predictions.packing.pack(stage_logits) for stage_logits in logits]
        scores = mean_scores(rows, last.convention)
        return last.decode(predictions, scores, proposals, self.score_thresh)


class _ScaleGradient(torch.autograd.Function):
    """Return the input; multiply its gradient by a factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * ctx.factor, None


def mean_scores(logits: Sequence[Tensor], convention: Convention) -> Tensor:
    """Average several predictions, logits [..., K], as probabilities or as logits."""
    stacked = torch.stack(list(logits))
    if convention.cascade_mean == "logits":
        return stacked.mean(dim=0).softmax(dim=-1)
    return stacked.softmax(dim=-1).mean(dim=0)


class CascadeBoxHead(Cascade, nn.Module):
    """A cascade of class-agnostic box heads."""

    def __init__(self, stages: Sequence[BoxHead], ious: Sequence[float]) -> None:
        super().__init__()
        for number, stage in enumerate(stages):
            self.add_module(str(number), stage)
        self.ious = ious
        self.score_thresh = stages[-1].score_thresh

    @property
    def stages(self) -> list[BoxHead]:
        return cast("list[BoxHead]", list(self.children()))

    @property
    def feature_extractor(self) -> Extractor:
        """Extractor of the first stage, whose samples train the mask and keypoint heads."""
        return self.stages[0].feature_extractor


class RepeatedBoxHead(Cascade, BoxHead):
    """A box head that is applied several times: a cascade of itself.

    Args:
        ious: the foreground IoU threshold of each pass, 0 to 1.
        options: arguments of `BoxHead`.
    """

    # Saves up to half of a pass: benchmarks/results/recipes/settings_batch_1.md.
    skip_below = 0.02

    def __init__(self, ious: Sequence[float], **options: Any) -> None:
        super().__init__(**options)
        self.ious = ious

    @property
    def stages(self) -> list[BoxHead]:
        return [self] * len(self.ious)


def build_cascade(cfg: CfgNode, backbone: Backbone) -> CascadeBoxHead | RepeatedBoxHead:
    """Build the heads of MODEL.ROI_HEADS.CASCADE_IOUS, or else the MODEL.ROI_BOX_HEAD.PASSES."""
    heads, passes = cfg.MODEL.ROI_HEADS, cfg.MODEL.ROI_BOX_HEAD.PASSES
    if passes > 1:
        ious = [min(heads.FG_IOU_THRESHOLD + 0.1 * number, 0.9) for number in range(passes)]
        return RepeatedBoxHead(ious, **box_head_options(cfg, backbone))
    options = [box_head_options(cfg, backbone, w) for w in heads.CASCADE_BBOX_REG_WEIGHTS]
    return CascadeBoxHead([BoxHead(**stage) for stage in options], heads.CASCADE_IOUS)
