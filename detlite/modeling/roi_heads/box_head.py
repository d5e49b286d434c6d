"""Box head (Fast R-CNN, https://arxiv.org/abs/1504.08083): classifies and refines proposals.

Shapes: B images; P proposals, S samples or N predicted boxes per image, padded; R packed rows (see
`detlite.structures.padding`); K classes, 0 is background; Q box regressions per row: K, or 2 if
class-agnostic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from yacs.config import CfgNode

from detlite.conventions import Convention, convention_of
from detlite.modeling.backbone import Backbone
from detlite.modeling.box_coder import BoxCoder
from detlite.modeling.box_loss import BoxLoss, build_box_loss
from detlite.modeling.exportable_parts import ExportablePart, head_parts
from detlite.modeling.layers.conv_block import Block, conv_block, separable_block
from detlite.modeling.layers.norm import build_optional_norm, takes_batch_statistics
from detlite.modeling.precision import at_least_float32
from detlite.registry import Registry
from detlite.structures import boxes as box_ops
from detlite.structures.instances import GroundTruth, PredictedBoxes, Proposals, Samples
from detlite.structures.padding import Packing, first_valid, gather

from .extractors import (
    CONV5_NAMES,
    BuildExtractor,
    Extractor,
    FPN2MLPFeatureExtractor,
    FPNXconv1fcFeatureExtractor,
    build_conv5_extractor,
)
from .pooler import build_pooler
from .predictors import BOX_PREDICTORS

BOX_EXTRACTORS: Registry[BuildExtractor] = Registry(
    "box feature extractor", {"FBNet": "detlite.modeling.backbone.fbnet"}
)
BOX_EXTRACTORS.register(*CONV5_NAMES)(partial(build_conv5_extractor, head="ROI_BOX_HEAD"))


@BOX_EXTRACTORS.register("FPN2MLPFeatureExtractor")
def _build_mlp(cfg: CfgNode, backbone: Backbone) -> Extractor:
    return FPN2MLPFeatureExtractor(
        build_pooler(cfg, "ROI_BOX_HEAD", backbone),
        backbone.out_channels,
        cfg.MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM,
        build_optional_norm(cfg, "ROI_BOX_HEAD"),
    )


def _build_convs(cfg: CfgNode, backbone: Backbone, block: Block) -> Extractor:
    head = cfg.MODEL.ROI_BOX_HEAD
    return FPNXconv1fcFeatureExtractor(
        build_pooler(cfg, "ROI_BOX_HEAD", backbone),
        backbone.out_channels,
        [head.CONV_HEAD_DIM] * head.NUM_STACKED_CONVS,
        head.MLP_HEAD_DIM,
        build_optional_norm(cfg, "ROI_BOX_HEAD"),
        head.DILATION,
        block,
    )


BOX_EXTRACTORS.register("FPNXconv1fcFeatureExtractor")(partial(_build_convs, block=conv_block))
BOX_EXTRACTORS.register("SeparableXconv1fcFeatureExtractor")(
    partial(_build_convs, block=separable_block)
)


@dataclass(frozen=True)
class BoxPredictions:
    """Predictions of a box head for packed rows.

    Attributes:
        packing: the rows.
        features: [R, ...], features of the extractor.
        logits: float32 [R, K].
        deltas: float32 [R, Q, 4].
    """

    packing: Packing
    features: Tensor
    logits: Tensor
    deltas: Tensor

    def features_of(self, packing: Packing, count: int) -> Tensor:
        """Select the features of other rows, all among the first `count` entries of an image."""
        return self.features[packing.pack(self.packing.row_numbers()[:, :count])]


class BoxHead(nn.Module):
    """Extractor and predictor of class scores and refined boxes.

    Args:
        extractor, predictor: from BOX_EXTRACTORS and BOX_PREDICTORS.
        box_coder: decodes the deltas.
        box_loss: of the foreground samples.
        class_agnostic: one box regression for all classes.
        score_thresh: predicted boxes need a higher score.
        convention: rules of clipping refined boxes.
    """

    def __init__(
        self,
        extractor: Extractor,
        predictor: nn.Module,
        box_coder: BoxCoder,
        *,
        box_loss: BoxLoss,
        class_agnostic: bool,
        score_thresh: float,
        convention: Convention,
    ) -> None:
        super().__init__()
        self.feature_extractor = extractor
        self.predictor = predictor
        self.box_coder = box_coder
        self.box_loss = box_loss
        self.class_agnostic = class_agnostic
        self.score_thresh = score_thresh
        self.convention = convention

    def losses(
        self,
        features: list[Tensor],
        samples: Samples,
        truth: GroundTruth,
        sizes: Tensor,
        static_shapes: bool,
    ) -> tuple[dict[str, Tensor], BoxPredictions]:
        """Compute `loss_classifier` and `loss_box`, averaged over samples, and the predictions.

        Args:
            features: levels [B, C, H_l, W_l].
            samples, truth: [B, S] and [B, G].
            sizes: int64 [B, 2], (height, width) of each image.
            static_shapes: compute padding too.
        """
        predictions = self(features, samples.boxes, samples.labels >= 0, static_shapes)
        return self._losses(predictions, samples, truth), predictions

    def predict(
        self, features: list[Tensor], proposals: Proposals, sizes: Tensor, static_shapes: bool
    ) -> PredictedBoxes:
        """Refine proposals [B, P] for every class that scores above the threshold; see `losses`."""
        predictions = self(features, proposals.boxes, proposals.valid, static_shapes)
        return self.decode(predictions, predictions.logits.softmax(dim=1), proposals)

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

    def _losses(
        self, predictions: BoxPredictions, samples: Samples, truth: GroundTruth
    ) -> dict[str, Tensor]:
        packing = predictions.packing
        labels = packing.pack(samples.labels)  # [R], -1 for padding
        count = (labels >= 0).sum().clamp(min=1)
        classifier = F.cross_entropy(predictions.logits, labels, reduction="sum", ignore_index=-1)
        foreground = Packing(labels[None] > 0, packing.static_shapes)  # rows of the rows
        index = foreground.index
        labels = labels[index].clamp(min=0)
        column = torch.ones_like(labels) if self.class_agnostic else labels
        box = self.box_loss(
            self.box_coder,
            predictions.deltas[index, column],
            packing.pack(gather(truth.boxes, samples.gt_index))[index],
            packing.pack(samples.boxes)[index],
            foreground.valid,
        )
        return {"loss_classifier": classifier / count, "loss_box": box.sum() / count}

    def decode(
        self, predictions: BoxPredictions, scores: Tensor, proposals: Proposals
    ) -> PredictedBoxes:
        """Decode the box of each proposal [B, P] and class that scores above the threshold.

        Args:
            predictions: of the proposals.
            scores: float32 [R, K] probabilities.
            proposals: the reference boxes.
        """
        packing, num_classes = predictions.packing, scores.shape[1] - 1
        class_scores = packing.unpack(scores[:, 1:]).flatten(1)  # [B, P (K - 1)], 0 for padding
        per_box = num_classes
        if self.score_thresh > 0:  # the scores of a box sum to at most 1
            per_box = min(num_classes, math.ceil(1 / self.score_thresh) - 1)
        limit = proposals.valid.shape[1] * per_box
        index, valid = first_valid(class_scores > self.score_thresh, limit, packing.static_shapes)
        place, label = index // num_classes, index % num_classes + 1
        deltas = packing.unpack(predictions.deltas)  # [B, P, Q, 4]
        column = torch.ones_like(label) if self.class_agnostic else label
        deltas = gather(deltas.flatten(1, 2), place * deltas.shape[2] + column)
        boxes = self.box_coder.decode(deltas, gather(proposals.boxes, place))
        return PredictedBoxes(boxes, class_scores.gather(1, index), label, valid)

    @torch.no_grad()
    def refine(self, predictions: BoxPredictions, boxes: Tensor, sizes: Tensor) -> Tensor:
        """Decode the class-agnostic deltas of boxes [B, N, 4] and clip the result."""
        deltas = predictions.packing.unpack(predictions.deltas[:, 1])
        return box_ops.clip(self.box_coder.decode(deltas, boxes), sizes, self.convention)

    def exportable_parts(self, name: str, shares_features: bool) -> list[ExportablePart]:
        """Return the parts of the head; see `head_parts`."""
        return head_parts(self, name, shares_features)


def build_box_head(
    cfg: CfgNode, backbone: Backbone, reg_weights: Sequence[float] | None = None
) -> BoxHead:
    """Build the box head of MODEL.ROI_BOX_HEAD.

    `reg_weights` are the weights of its `BoxCoder`, by default MODEL.ROI_HEADS.BBOX_REG_WEIGHTS.
    """
    head, convention = cfg.MODEL.ROI_BOX_HEAD, convention_of(cfg)
    build = BOX_EXTRACTORS.get(head.FEATURE_EXTRACTOR, "MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR")
    extractor = build(cfg, backbone)
    predictor = BOX_PREDICTORS.get(head.PREDICTOR, "MODEL.ROI_BOX_HEAD.PREDICTOR")
    return BoxHead(
        extractor,
        predictor(cfg, extractor.out_channels),
        BoxCoder(reg_weights or cfg.MODEL.ROI_HEADS.BBOX_REG_WEIGHTS, convention.limit_shrinking),
        box_loss=build_box_loss(cfg, "ROI_BOX_HEAD"),
        class_agnostic=cfg.MODEL.CLS_AGNOSTIC_BBOX_REG,
        score_thresh=cfg.MODEL.ROI_HEADS.SCORE_THRESH,
        convention=convention,
    )
