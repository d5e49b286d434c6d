"""Box head (Fast R-CNN, https://arxiv.org/abs/1504.08083): classifies and refines proposals.

Shapes: B images of `sizes` int64 [B, 2] (height, width), and `features`, the levels
[B, C, H_l, W_l] of the backbone; P proposals, S samples, G ground truths or N predicted boxes per
image, padded; R packed rows (see `detlite.structures.padding`), with padding if `static_shapes`;
K classes, 0 is background; Q box regressions per row: K, or 2 if class-agnostic.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from yacs.config import CfgNode

from detlite.conventions import Convention, convention_of
from detlite.modeling.backbone import Backbone
from detlite.modeling.boxes.box_coder import BoxCoder
from detlite.modeling.boxes.dynamic import DynamicThresholds, build_dynamic_thresholds
from detlite.modeling.boxes.losses import BoxLoss, ClassLoss, build_box_loss, build_class_loss
from detlite.modeling.layers.norm import takes_batch_statistics
from detlite.modeling.precision import at_least_float32
from detlite.structures import boxes as box_ops
from detlite.structures.instances import GroundTruth, PredictedBoxes, Proposals, Samples
from detlite.structures.padding import Packing, first_valid, gather

from .extractors import Extractor, build_extractor
from .predictors import build_predictor


@dataclass(frozen=True)
class BoxPredictions:
    """Predictions of a box head for packed rows."""

    packing: Packing
    features: Tensor  # [R, ...], of the extractor
    logits: Tensor  # float32 [R, K]
    deltas: Tensor  # float32 [R, Q, 4]

    def features_of(self, packing: Packing, count: int) -> Tensor:
        """Select the features of other rows, all among the first `count` entries of an image."""
        return self.features[packing.pack(self.packing.row_numbers()[:, :count])]


class BoxHead(nn.Module):
    """Extractor and predictor of class scores and refined boxes.

    Args:
        class_agnostic: one box regression for all classes.
        class_scores: predicted boxes hold the scores of all classes.
        score_thresh: predicted boxes need a higher score.
        thresholds: replace the beta of `box_loss`.
        passes: the number of times that `predict` applies the head, each time to the boxes that it
            predicted before, as "iterative BBox" in https://arxiv.org/abs/1712.00726.
    """

    def __init__(
        self,
        extractor: Extractor,
        predictor: nn.Module,
        box_coder: BoxCoder,
        *,
        class_loss: ClassLoss,
        box_loss: BoxLoss,
        class_agnostic: bool,
        score_thresh: float,
        convention: Convention,
        class_scores: bool = False,
        thresholds: DynamicThresholds | None = None,
        passes: int = 1,
    ) -> None:
        super().__init__()
        self.feature_extractor = extractor
        self.predictor = predictor
        self.box_coder = box_coder
        self.class_loss = class_loss
        self.box_loss = box_loss
        self.class_agnostic = class_agnostic
        self.class_scores = class_scores
        self.score_thresh = score_thresh
        self.convention = convention
        self.thresholds = thresholds
        self.passes = passes

    def losses(
        self,
        features: list[Tensor],
        samples: Samples,
        truth: GroundTruth,
        sizes: Tensor,
        static_shapes: bool,
    ) -> tuple[dict[str, Tensor], BoxPredictions]:
        """Compute `loss_classifier` and `loss_box`, averaged over samples, and the predictions."""
        predictions = self(features, samples.boxes, samples.labels >= 0, static_shapes)
        packing = predictions.packing
        labels = packing.pack(samples.labels)  # [R], -1 for padding
        count = (labels >= 0).sum().clamp(min=1)
        classifier = self.class_loss(predictions.logits, labels)
        foreground = Packing(labels[None] > 0, packing.static_shapes)  # rows of the rows
        index = foreground.index
        box_loss = self.box_loss
        if self.thresholds is not None:
            box_loss = replace(box_loss, beta=self.thresholds.beta)
        box = box_loss(
            self.box_coder,
            predictions.deltas[index, self._column(labels[index].clamp(min=0))],
            packing.pack(gather(truth.boxes, samples.gt_index))[index],
            packing.pack(samples.boxes)[index],
            foreground.valid,
        )
        losses = {"loss_classifier": classifier / count, "loss_box": box.sum() / count}
        return losses, predictions

    def predict(
        self, features: list[Tensor], proposals: Proposals, sizes: Tensor, static_shapes: bool
    ) -> PredictedBoxes:
        """Refine proposals [B, P] for every class that scores above the threshold.

        Scores are averaged over the passes as over the stages of a cascade
        (`Convention.cascade_mean`).
        """
        predictions: list[BoxPredictions] = []
        for number in range(self.passes):
            if number:
                boxes = self.refine(predictions[-1], proposals.boxes, sizes)
                proposals = replace(proposals, boxes=boxes)
            predictions.append(self(features, proposals.boxes, proposals.valid, static_shapes))
        return self.decode(predictions[-1], mean_scores(predictions, self.convention), proposals)

    def forward(
        self, features: list[Tensor], boxes: Tensor, valid: Tensor, static_shapes: bool
    ) -> BoxPredictions:
        """Predict logits and deltas of the valid ones of boxes [B, N, 4]."""
        # Padding must not be part of batch statistics.
        packing = Packing(valid, static_shapes and not takes_batch_statistics(self))
        x = self.feature_extractor(features, packing.rois(boxes))
        logits, deltas = self.predictor(x)
        deltas = at_least_float32(deltas).unflatten(1, (-1, 4))
        return BoxPredictions(packing, x, at_least_float32(logits), deltas)

    def _column(self, labels: Tensor) -> Tensor:
        """Return the index of the box regression of labels."""
        return torch.ones_like(labels) if self.class_agnostic else labels

    def decode(
        self, predictions: BoxPredictions, scores: Tensor, proposals: Proposals
    ) -> PredictedBoxes:
        """Decode the box of each proposal [B, P] and class whose score, of float32 [R, K], exceeds
        the threshold."""
        packing, num_classes = predictions.packing, scores.shape[1] - 1
        all_scores = packing.unpack(scores[:, 1:])  # [B, P, K - 1], 0 for padding
        class_scores = all_scores.flatten(1)
        per_box = num_classes
        if self.score_thresh > 0:  # the scores of a box sum to at most 1
            per_box = min(num_classes, math.ceil(1 / self.score_thresh) - 1)
        limit = proposals.valid.shape[1] * per_box
        index, valid = first_valid(class_scores > self.score_thresh, limit, packing.static_shapes)
        place, label = index // num_classes, index % num_classes + 1
        deltas = packing.unpack(predictions.deltas)  # [B, P, Q, 4]
        deltas = gather(deltas.flatten(1, 2), place * deltas.shape[2] + self._column(label))
        boxes = self.box_coder.decode(deltas, gather(proposals.boxes, place))
        own_scores = gather(all_scores, place) if self.class_scores else None
        return PredictedBoxes(boxes, class_scores.gather(1, index), label, valid, own_scores)

    @torch.no_grad()
    def refine(self, predictions: BoxPredictions, boxes: Tensor, sizes: Tensor) -> Tensor:
        """Decode the deltas of boxes [B, N, 4] for their highest-scoring category, and clip the
        result."""
        best = self._column(predictions.logits[:, 1:].argmax(dim=1) + 1)
        rows = torch.arange(best.shape[0], device=best.device)
        deltas = predictions.packing.unpack(predictions.deltas[rows, best])
        return box_ops.clip(self.box_coder.decode(deltas, boxes), sizes, self.convention)


def mean_scores(predictions: Sequence[BoxPredictions], convention: Convention) -> Tensor:
    """Average the scores [R, K] of several predictions, as probabilities or as logits."""
    logits = torch.stack([own.logits for own in predictions])
    if convention.cascade_mean == "logits":
        return logits.mean(dim=0).softmax(dim=1)
    return logits.softmax(dim=2).mean(dim=0)


def build_box_head(
    cfg: CfgNode, backbone: Backbone, reg_weights: Sequence[float] | None = None
) -> BoxHead:
    """Build the box head of MODEL.ROI_BOX_HEAD.

    `reg_weights` are the weights of its `BoxCoder`, by default MODEL.ROI_HEADS.BBOX_REG_WEIGHTS.
    """
    convention = convention_of(cfg)
    extractor = build_extractor(cfg, backbone, "ROI_BOX_HEAD")
    weights = reg_weights or cfg.MODEL.ROI_HEADS.BBOX_REG_WEIGHTS
    coder = BoxCoder(weights, convention.limit_shrinking)
    return BoxHead(
        extractor,
        build_predictor(cfg, "ROI_BOX_HEAD", extractor.out_channels),
        coder,
        class_loss=build_class_loss(cfg),
        box_loss=build_box_loss(cfg, "ROI_BOX_HEAD"),
        class_agnostic=cfg.MODEL.CLS_AGNOSTIC_BBOX_REG,
        class_scores="class_scores" in cfg.TEST.EXTRA_OUTPUTS,
        score_thresh=cfg.MODEL.ROI_HEADS.SCORE_THRESH,
        convention=convention,
        thresholds=build_dynamic_thresholds(cfg, coder),
        passes=cfg.TEST.BOX_PASSES,
    )
