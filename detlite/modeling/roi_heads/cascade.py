"""Cascade R-CNN (Cai & Vasconcelos, https://arxiv.org/abs/1712.00726).

Several box heads, or one several times, each trained at a higher IoU on the boxes that the
previous one refined.

Shapes: B images; P proposals and S samples per image; K classes, 0 is background.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from detlite.conventions import Convention
from detlite.modeling.boxes.matcher import Matcher
from detlite.modeling.boxes.sampler import label_samples
from detlite.structures import boxes as box_ops
from detlite.structures.instances import GroundTruth, PredictedBoxes, Proposals, Samples

if TYPE_CHECKING:
    from .box_head import BoxHead, BoxPredictions
    from .extractors import Extractor


class BoxStages(nn.Module, ABC):
    """Box heads applied in order, each to the boxes that the previous one refined.

    Attributes:
        matchers: label the samples of each stage after the first, whose samples have labels.
        score_thresh: predicted boxes need a higher score.
        skip_below: fraction of `score_thresh`. The later stages skip a proposal if its mean
            foreground probability in the earlier ones is lower.
    """

    matchers: list[Matcher]
    score_thresh: float
    skip_below = 0.0

    @property
    @abstractmethod
    def stages(self) -> list[BoxHead]:
        """The heads in order."""

    def losses(
        self,
        features: list[Tensor],
        samples: Samples,
        truth: GroundTruth,
        sizes: Tensor,
        static_shapes: bool,
    ) -> tuple[dict[str, Tensor], BoxPredictions]:
        """Compute the losses of each stage, and the first stage's predictions.

        `loss_classifier` and `loss_box` are averaged over samples. With several stages, they are
        `loss_classifier_stage0`, `loss_box_stage0`, ...
        """
        stages = self.stages
        if len(stages) == 1:
            return stages[0].stage_losses(features, samples, truth, static_shapes)
        # The stages share the backbone, so average their gradients there. Gradients of a head that
        # is used in several passes add up.
        features = [_ScaleGradient.apply(level, 1 / len(stages)) for level in features]
        losses: dict[str, Tensor] = {}
        predictions: list[BoxPredictions] = []
        for number, (stage, matcher) in enumerate(zip(stages, self.matchers, strict=True)):
            if number:
                boxes = stages[number - 1].refine(predictions[-1], samples.boxes, sizes)
                valid = (samples.labels >= 0) & box_ops.has_min_size(boxes, 0)
                samples = label_samples(boxes, matcher(truth, boxes, valid), valid, truth)
            stage_losses, predicted = stage.stage_losses(features, samples, truth, static_shapes)
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


class CascadeBoxHead(BoxStages):
    """Class-agnostic box heads, each applied to the boxes of the previous one.

    `ious` are the foreground IoU thresholds of the stages. The sampler must use the first one.
    """

    thresholds = None

    def __init__(self, stages: Sequence[BoxHead], ious: Sequence[float]) -> None:
        super().__init__()
        for number, stage in enumerate(stages):
            self.add_module(str(number), stage)
        self.matchers = [Matcher(iou, iou) for iou in ious]
        self.score_thresh = stages[-1].score_thresh

    @property
    def stages(self) -> list[BoxHead]:
        """The heads in order."""
        return cast("list[BoxHead]", list(self.children()))

    @property
    def feature_extractor(self) -> Extractor:
        """Extractor of the first stage, whose samples train the mask and keypoint heads."""
        return self.stages[0].feature_extractor
