"""Box head (Fast R-CNN, https://arxiv.org/abs/1504.08083): classifies and refines proposals.

Shapes: B images of `sizes` int64 [B, 2] (height, width), and `features`, the levels
[B, C, H_l, W_l] of the backbone; P proposals, S samples, G ground truths or N predicted boxes per
image, padded; R packed rows (see `detlite.structures.padding`), with padding if `static_shapes`;
K classes, 0 is background; Q box regressions per row: K, or 2 if class-agnostic.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from yacs.config import CfgNode

from detlite.conventions import Convention, convention_of
from detlite.modeling.backbone import Backbone
from detlite.modeling.boxes.box_coder import BoxCoder
from detlite.modeling.boxes.losses import BoxLoss, build_box_loss
from detlite.modeling.layers.norm import uses_batch_statistics
from detlite.modeling.precision import at_least_float32
from detlite.structures import boxes as box_ops
from detlite.structures.instances import GroundTruth, PredictedBoxes, Proposals, Samples
from detlite.structures.padding import RowPacking, first_valid, gather

from .extractors import Extractor, build_extractor
from .predictors import BoxPredictor, build_predictor


@dataclass(frozen=True)
class BoxPredictions:
    """Predictions of a box head for packed rows."""

    packing: RowPacking
    features: Tensor  # [R, ...], of the extractor
    logits: Tensor  # float32 [R, K]
    deltas: Tensor  # float32 [R, Q, 4]


class BoxHead(nn.Module):
    """Extractor and predictor of class scores and refined boxes.

    Args:
        class_agnostic: one box regression for all classes.
        score_thresh: predicted boxes need a higher score.
        class_scores: predicted boxes contain the scores of all classes.
    """

    def __init__(
        self,
        extractor: Extractor,
        predictor: BoxPredictor,
        box_coder: BoxCoder,
        *,
        box_loss: BoxLoss,
        class_agnostic: bool,
        score_thresh: float,
        convention: Convention,
        class_scores: bool = False,
    ) -> None:
        super().__init__()
        self.feature_extractor = extractor
        self.predictor = predictor
        self.box_coder = box_coder
        self.box_loss = box_loss
        self.class_agnostic = class_agnostic
        self.class_scores = class_scores
        self.score_thresh = score_thresh
        self.convention = convention

    def forward(
        self, features: list[Tensor], boxes: Tensor, valid: Tensor, static_shapes: bool
    ) -> BoxPredictions:
        """Predict logits and deltas of the valid boxes among [B, N, 4]."""
        # Padding must not be part of batch statistics.
        packing = RowPacking(valid, static_shapes and not uses_batch_statistics(self))
        x = self.feature_extractor(features, packing.rois(boxes))
        logits, deltas = self.predictor(x)
        deltas = at_least_float32(deltas).unflatten(1, (-1, 4))
        return BoxPredictions(packing, x, at_least_float32(logits), deltas)

    def losses(
        self,
        features: list[Tensor],
        samples: Samples,
        truth: GroundTruth,
        sizes: Tensor,
        static_shapes: bool,
    ) -> tuple[dict[str, Tensor], BoxPredictions]:
        """Compute `loss_classifier` and `loss_box`, averaged over samples [B, S], and the
        predictions for the samples."""
        predictions = self(features, samples.boxes, samples.labels >= 0, static_shapes)
        return self.compare(predictions, samples, truth), predictions

    def predict(
        self, features: list[Tensor], proposals: Proposals, sizes: Tensor, static_shapes: bool
    ) -> PredictedBoxes:
        """Refine proposals [B, P] for every class that scores above the threshold."""
        predictions = self(features, proposals.boxes, proposals.valid, static_shapes)
        scores = predictions.logits.softmax(dim=-1)
        return self.decode(predictions, scores, proposals, self.score_thresh)

    def compare(
        self, predictions: BoxPredictions, samples: Samples, truth: GroundTruth
    ) -> dict[str, Tensor]:
        """Compute the losses of predictions for samples [B, S]."""
        packing = predictions.packing
        labels = packing.pack(samples.labels)  # [R], -1 for padding
        count = (labels >= 0).sum().clamp(min=1)
        classifier = self.predictor.classification_loss(predictions.logits, labels).sum()
        foreground = RowPacking(labels[None] > 0, packing.static_shapes)  # among the R rows
        index = foreground.index
        box = self.box_loss(
            self.box_coder,
            predictions.deltas[index, self._column(labels[index].clamp(min=0))],
            packing.pack(gather(truth.boxes, samples.gt_index))[index],
            packing.pack(samples.boxes)[index],
            foreground.valid,
        )
        return {"loss_classifier": classifier / count, "loss_box": box.sum() / count}

    def _column(self, labels: Tensor) -> Tensor:
        """Return the index of the box regression of labels."""
        return torch.ones_like(labels) if self.class_agnostic else labels

    def decode(
        self,
        predictions: BoxPredictions,
        scores: Tensor,
        proposals: Proposals,
        score_thresh: float,
    ) -> PredictedBoxes:
        """Decode a box for each proposal [B, P] and class with a score above `score_thresh`.

        `scores` are float32 [R, K].
        """
        packing, num_classes = predictions.packing, scores.shape[1] - 1
        class_scores = packing.unpack(scores[:, 1:]) * proposals.valid[..., None]  # [B, P, K - 1]
        flat_scores = class_scores.flatten(1)
        per_box = num_classes
        if score_thresh > 0:  # the scores of a box sum to at most 1
            per_box = min(num_classes, math.ceil(1 / score_thresh) - 1)
        limit = proposals.valid.shape[1] * per_box
        index, valid = first_valid(flat_scores > score_thresh, limit, packing.static_shapes)
        proposal, label = index // num_classes, index % num_classes + 1
        deltas = packing.unpack(predictions.deltas)  # [B, P, Q, 4]
        deltas = gather(deltas.flatten(1, 2), proposal * deltas.shape[2] + self._column(label))
        boxes = self.box_coder.decode(deltas, gather(proposals.boxes, proposal))
        scores = flat_scores.gather(1, index)
        more = {"class_scores": gather(class_scores, proposal)} if self.class_scores else {}
        return PredictedBoxes(boxes, scores, label, valid, more)

    @torch.no_grad()
    def refine(self, predictions: BoxPredictions, boxes: Tensor, sizes: Tensor) -> Tensor:
        """Decode the deltas of boxes [B, N, 4] for their highest-scoring category, and clip the
        result."""
        best = self._column(predictions.logits[:, 1:].argmax(dim=1) + 1)
        rows = torch.arange(best.shape[0], device=best.device)
        deltas = predictions.packing.unpack(predictions.deltas[rows, best])
        return box_ops.clip(self.box_coder.decode(deltas, boxes), sizes, self.convention)


def box_head_options(
    cfg: CfgNode, backbone: Backbone, reg_weights: Sequence[float] | None = None
) -> dict[str, Any]:
    """Return the arguments of `BoxHead` that MODEL.ROI_BOX_HEAD describes.

    `reg_weights` are the weights of its `BoxCoder`, by default MODEL.ROI_HEADS.BBOX_REG_WEIGHTS.
    """
    convention, heads = convention_of(cfg), cfg.MODEL.ROI_HEADS
    extractor = build_extractor(cfg, backbone, "ROI_BOX_HEAD")
    return {
        "extractor": extractor,
        "predictor": build_predictor(cfg, "ROI_BOX_HEAD", extractor.out_channels),
        "box_coder": BoxCoder(reg_weights or heads.BBOX_REG_WEIGHTS, convention.limit_shrinking),
        "box_loss": build_box_loss(cfg, "ROI_BOX_HEAD"),
        "class_agnostic": cfg.MODEL.CLS_AGNOSTIC_BBOX_REG,
        "class_scores": "class_scores" in cfg.TEST.EXTRA_OUTPUTS,
        "score_thresh": heads.SCORE_THRESH,
        "convention": convention,
    }
