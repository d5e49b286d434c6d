"""Box head (Fast R-CNN, https://arxiv.org/abs/1504.08083): classifies and refines proposals.

Shapes: B images; P proposals, S samples or N predicted boxes in an image, padded; R rows computed
(see `structures.rows`); K classes, 0 the background; Q box regressions a row: K, or 2 for all.
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
from detlite.modeling.box_coder import BoxCoder, BoxLoss, build_box_loss
from detlite.modeling.layers.conv_block import Block, at_least_float32, conv_block
from detlite.modeling.layers.norm import optional_norm, takes_batch_statistics
from detlite.registry import Registry
from detlite.structures import boxes as box_ops
from detlite.structures.instances import GroundTruth, PredictedBoxes, Proposals, Samples
from detlite.structures.padding import Rows, gather, leading

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
    "box feature extractor", on_demand={"FBNet": "detlite.modeling.backbone.fbnet"}
)
BOX_EXTRACTORS.register(*CONV5_NAMES)(partial(build_conv5_extractor, head="ROI_BOX_HEAD"))


@BOX_EXTRACTORS.register("FPN2MLPFeatureExtractor")
def _build_two_layers(cfg: CfgNode, backbone: Backbone) -> Extractor:
    return FPN2MLPFeatureExtractor(
        build_pooler(cfg, "ROI_BOX_HEAD", backbone),
        backbone.out_channels,
        cfg.MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM,
        optional_norm(cfg, "ROI_BOX_HEAD"),
    )


def build_box_convs(cfg: CfgNode, backbone: Backbone, block: Block = conv_block) -> Extractor:
    """The convolutions and the layer that MODEL.ROI_BOX_HEAD describes; `block` makes each 3x3."""
    head = cfg.MODEL.ROI_BOX_HEAD
    return FPNXconv1fcFeatureExtractor(
        build_pooler(cfg, "ROI_BOX_HEAD", backbone),
        backbone.out_channels,
        [head.CONV_HEAD_DIM] * head.NUM_STACKED_CONVS,
        head.MLP_HEAD_DIM,
        optional_norm(cfg, "ROI_BOX_HEAD"),
        head.DILATION,
        block,
    )


BOX_EXTRACTORS.register("FPNXconv1fcFeatureExtractor")(build_box_convs)


@dataclass(frozen=True)
class BoxPredictions:
    """What a box head says of the rows that it computed.

    Attributes:
        rows: which entries of the batch they are.
        features: [R, ...], what the extractor gives for them.
        logits: float32 [R, K].
        deltas: float32 [R, Q, 4].
    """

    rows: Rows
    features: Tensor
    logits: Tensor
    deltas: Tensor

    def features_of(self, rows: Rows, count: int) -> Tensor:
        """The features of `rows`, all of them among the first `count` entries of an image."""
        return self.features[rows.pack(self.rows.position()[:, :count])]


class BoxHead(nn.Module):
    """Extractor and predictor.

    Args:
        extractor, predictor: from BOX_EXTRACTORS and BOX_PREDICTORS.
        box_coder: what the deltas are encoded by.
        box_loss: of the foreground samples.
        class_agnostic: one box regression for all classes.
        score_thresh: predicted boxes need a higher score.
        convention: how refined boxes are clipped.
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
        self, features: list[Tensor], samples: Samples, truth: GroundTruth, sizes: Tensor
    ) -> tuple[dict[str, Tensor], BoxPredictions]:
        """`loss_classifier` and `loss_box`, averaged over the samples; and the predictions.

        Args:
            features: levels [B, C, H_l, W_l].
            samples, truth: [B, S] and [B, G].
            sizes: int64 [B, 2], (height, width) of each image.
        """
        predictions = self(features, samples.boxes, samples.labels >= 0)
        return self.losses_of(predictions, samples, truth), predictions

    def predict(
        self, features: list[Tensor], proposals: Proposals, sizes: Tensor
    ) -> PredictedBoxes:
        """The refined boxes of every class that scores above the threshold; see `losses`."""
        predictions = self(features, proposals.boxes, proposals.valid)
        return self.decode(predictions, predictions.logits.softmax(dim=1), proposals)

    def forward(self, features: list[Tensor], boxes: Tensor, valid: Tensor) -> BoxPredictions:
        """Predictions for boxes [B, N, 4] that are valid [B, N]."""
        rows = Rows(valid, unpadded=takes_batch_statistics(self))
        x = self.feature_extractor(features, rows.rois(boxes))
        logits, deltas = self.predictor(x)
        deltas = at_least_float32(deltas).unflatten(1, (-1, 4))
        return BoxPredictions(rows, x, at_least_float32(logits), deltas)

    def losses_of(
        self, predictions: BoxPredictions, samples: Samples, truth: GroundTruth
    ) -> dict[str, Tensor]:
        """`loss_classifier` and `loss_box` of predictions for samples [B, S]."""
        rows = predictions.rows
        labels = rows.pack(samples.labels)  # (R,), -1 at padding
        count = (labels >= 0).sum().clamp(min=1)
        classifier = F.cross_entropy(predictions.logits, labels, reduction="sum", ignore_index=-1)
        foreground = Rows(labels[None] > 0)  # rows of rows
        index = foreground.index
        labels = labels[index].clamp(min=0)
        column = torch.ones_like(labels) if self.class_agnostic else labels
        box = self.box_loss(
            self.box_coder,
            predictions.deltas[index, column],
            rows.pack(gather(truth.boxes, samples.gt_index))[index],
            rows.pack(samples.boxes)[index],
            foreground.valid,
        )
        return {"loss_classifier": classifier / count, "loss_box": box.sum() / count}

    def decode(
        self, predictions: BoxPredictions, scores: Tensor, proposals: Proposals
    ) -> PredictedBoxes:
        """The boxes that proposals [B, P] are moved to, for each class that scores enough.

        `predictions` are of those proposals, `scores` float32 [R, K] their probabilities.
        """
        rows, classes = predictions.rows, scores.shape[1] - 1
        wanted = rows.unpack(scores[:, 1:]).flatten(1)  # (B, P (K - 1)), 0 at padding
        most = classes
        if self.score_thresh > 0:  # the scores of a row add up to 1 at most
            most = min(classes, math.ceil(1 / self.score_thresh) - 1)
        index, valid = leading(wanted > self.score_thresh, proposals.valid.shape[1] * most)
        row, label = index // classes, index % classes + 1
        # Only what passes the threshold is decoded: a small part of P x K.
        deltas = rows.unpack(predictions.deltas)  # (B, P, Q, 4)
        column = torch.ones_like(label) if self.class_agnostic else label
        deltas = gather(deltas.flatten(1, 2), row * deltas.shape[2] + column)
        boxes = self.box_coder.decode(deltas, gather(proposals.boxes, row))
        return PredictedBoxes(boxes, wanted.gather(1, index), label, valid)

    @torch.no_grad()
    def refine(self, predictions: BoxPredictions, boxes: Tensor, sizes: Tensor) -> Tensor:
        """Boxes [B, N, 4] moved by class-agnostic deltas, and clipped."""
        deltas = predictions.rows.unpack(predictions.deltas[:, 1])
        return box_ops.clip(self.box_coder.decode(deltas, boxes), sizes, self.convention)


def build_box_head(
    cfg: CfgNode, backbone: Backbone, reg_weights: Sequence[float] | None = None
) -> BoxHead:
    """The box head that MODEL.ROI_BOX_HEAD describes; `reg_weights` scale its deltas, if not
    MODEL.ROI_HEADS.BBOX_REG_WEIGHTS."""
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
