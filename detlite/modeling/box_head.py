"""Box head (Fast R-CNN, https://arxiv.org/abs/1504.08083): classifies and refines proposals.

Shapes: R proposals over all images, S x S pooled, K classes with background as class 0, and Q box
regressions a proposal: K, or 2 when they are class-agnostic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from yacs.config import CfgNode

from ..registry import Registry
from ..structures import boxes as box_ops
from .backbone import Backbone
from .box_coder import BoxCoder
from .box_loss import BoxLoss, build_box_loss
from .extractors import (
    FPN2MLPFeatureExtractor,
    FPNXconv1fcFeatureExtractor,
    build_conv5_extractor,
)
from .layers import init_normal
from .norm import optional_norm
from .pooler import build_pooler
from .precision import at_least_float32
from .suppression import DetectionLimits, Scored

# Pool regions and turn them into features; attribute `out_channels`.
BOX_EXTRACTORS: Registry[Callable[[CfgNode, Backbone], nn.Module]] = Registry(
    "box feature extractor"
)
# Features -> (class logits [R, K], box deltas [R, 4 Q]).
BOX_PREDICTORS: Registry[Callable[[CfgNode, int], nn.Module]] = Registry("box predictor")


@BOX_EXTRACTORS.register("FPN2MLPFeatureExtractor")
def _build_two_layers(cfg: CfgNode, backbone: Backbone) -> nn.Module:
    return FPN2MLPFeatureExtractor(
        build_pooler(cfg, "ROI_BOX_HEAD", backbone),
        backbone.out_channels,
        cfg.MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM,
        optional_norm(cfg, "ROI_BOX_HEAD"),
    )


@BOX_EXTRACTORS.register("FPNXconv1fcFeatureExtractor")
def _build_convs(cfg: CfgNode, backbone: Backbone) -> nn.Module:
    head = cfg.MODEL.ROI_BOX_HEAD
    return FPNXconv1fcFeatureExtractor(
        build_pooler(cfg, "ROI_BOX_HEAD", backbone),
        backbone.out_channels,
        [head.CONV_HEAD_DIM] * head.NUM_STACKED_CONVS,
        head.MLP_HEAD_DIM,
        optional_norm(cfg, "ROI_BOX_HEAD"),
        head.DILATION,
    )


@BOX_EXTRACTORS.register(
    "ResNetConv5ROIFeatureExtractor",
    "ResNet50Conv5ROIFeatureExtractor",
    "ResNet101Conv5ROIFeatureExtractor",
)
def _build_conv5(cfg: CfgNode, backbone: Backbone) -> nn.Module:
    return build_conv5_extractor(cfg, backbone, "ROI_BOX_HEAD")


class FPNPredictor(nn.Module):
    """Class logits and box deltas, for extractors that end in a vector.

    Args:
        in_channels: D.
        num_classes: K.
        num_regressions: Q.
    """

    def __init__(self, in_channels: int, num_classes: int, num_regressions: int) -> None:
        super().__init__()
        self.cls_score = nn.Linear(in_channels, num_classes)
        self.bbox_pred = nn.Linear(in_channels, num_regressions * 4)
        init_normal(self.cls_score, std=0.01)
        init_normal(self.bbox_pred, std=0.001)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[R, D] -> logits [R, K], deltas [R, 4 Q]."""
        return self.cls_score(x), self.bbox_pred(x)


class FastRCNNPredictor(FPNPredictor):
    """The same for extractors that end in a map, which is averaged."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[R, D, S, S] -> logits [R, K], deltas [R, 4 Q]."""
        return super().forward(x.mean(dim=(2, 3)))


@BOX_PREDICTORS.register("FPNPredictor")
def _build_fpn_predictor(cfg: CfgNode, in_channels: int) -> nn.Module:
    return FPNPredictor(in_channels, *_outputs(cfg))


@BOX_PREDICTORS.register("FastRCNNPredictor")
def _build_fast_rcnn_predictor(cfg: CfgNode, in_channels: int) -> nn.Module:
    return FastRCNNPredictor(in_channels, *_outputs(cfg))


def _outputs(cfg: CfgNode) -> tuple[int, int]:
    """K and Q."""
    num_classes = cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES
    return num_classes, 2 if cfg.MODEL.CLS_AGNOSTIC_BBOX_REG else num_classes


class BoxHead(nn.Module):
    """Extractor, predictor, their losses, and the scored boxes that they predict."""

    def __init__(
        self,
        extractor: nn.Module,
        predictor: nn.Module,
        box_coder: BoxCoder,
        *,
        box_loss: BoxLoss,
        class_agnostic: bool,
        inclusive: bool = False,
    ) -> None:
        super().__init__()
        self.feature_extractor = extractor
        self.predictor = predictor
        self.box_coder = box_coder
        self.box_loss = box_loss
        self.class_agnostic = class_agnostic
        self.inclusive = inclusive

    def losses(
        self,
        logits: Tensor,
        deltas: Tensor,
        proposals: list[Tensor],
        targets: list[dict[str, Any]],
    ) -> dict[str, Tensor]:
        """Cross entropy and box regression, averaged over the sampled proposals.

        Args:
            logits, deltas: [R, K] and [R, 4 Q], as the predictor gives them.
            proposals: for each image [R_i, 4].
            targets: for each image `labels` [R_i], and `boxes` [R_i, 4] for the foreground.
        """
        logits, deltas = at_least_float32(logits), at_least_float32(deltas)
        labels = torch.cat([target["labels"] for target in targets])  # (R,)
        boxes = torch.cat([target["boxes"] for target in targets])
        count = max(len(labels), 1)
        foreground = torch.where(labels > 0)[0]
        column = torch.ones_like(foreground) if self.class_agnostic else labels[foreground]
        predicted = deltas.unflatten(1, (-1, 4))[foreground, column]
        box = self.box_loss(
            self.box_coder, predicted, boxes[foreground], torch.cat(proposals)[foreground]
        )
        classifier = F.cross_entropy(logits, labels, reduction="sum")
        return {"loss_classifier": classifier / count, "loss_box": box / count}

    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features of R proposals -> float32 probabilities [R, K] and deltas [R, 4 Q]."""
        logits, deltas = self.predictor(x)
        return at_least_float32(logits).softmax(dim=1), at_least_float32(deltas)

    def candidates(
        self,
        scores: Tensor,
        deltas: Tensor,
        proposals: list[Tensor],
        image_sizes: Sequence[tuple[int, int]],
        limits: DetectionLimits,
    ) -> list[Scored]:
        """The refined boxes that `limits` allow, before any is suppressed.

        Args:
            scores, deltas: as `predict` gives them.
            proposals: for each image [R_i, 4].
            image_sizes: (height, width) of each image without padding.
            limits: of which `score_thresh` and `min_size` count here.

        Returns:
            For each image `boxes` [N, 4], `scores` [N] and `labels` [N].
        """
        counts = [len(p) for p in proposals]
        per_image = deltas.unflatten(1, (-1, 4)).split(counts)
        images = zip(scores.split(counts), per_image, proposals, image_sizes, strict=True)
        return [self._candidates(*image, limits) for image in images]

    @torch.no_grad()
    def refine(
        self, deltas: Tensor, proposals: list[Tensor], image_sizes: Sequence[tuple[int, int]]
    ) -> list[Tensor]:
        """The proposals [R_i, 4] of each image, moved by class-agnostic deltas [R, 8]."""
        foreground = at_least_float32(deltas).unflatten(1, (-1, 4))[:, 1]
        moved = self.box_coder.decode(foreground, torch.cat(proposals))
        per_image = moved.split([len(p) for p in proposals])
        return [
            box_ops.clip(boxes, size, self.inclusive)
            for boxes, size in zip(per_image, image_sizes, strict=True)
        ]

    def _candidates(
        self,
        scores: Tensor,
        deltas: Tensor,
        proposals: Tensor,
        size: tuple[int, int],
        limits: DetectionLimits,
    ) -> Scored:
        """One image: scores [R, K], deltas [R, Q, 4], proposals [R, 4]."""
        # Only what passes the threshold is decoded: a small part of R x K.
        row, column = torch.where(scores[:, 1:] > limits.score_thresh)
        labels = column + 1
        scores = scores[row, labels]
        regression = deltas[row, torch.ones_like(labels) if self.class_agnostic else labels]
        boxes = self.box_coder.decode(regression, proposals[row])
        boxes = box_ops.clip(boxes, size, self.inclusive)
        usable = box_ops.at_least(boxes, limits.min_size)
        return {"boxes": boxes[usable], "scores": scores[usable], "labels": labels[usable]}


def build_box_head(
    cfg: CfgNode, backbone: Backbone, reg_weights: Sequence[float] | None = None
) -> BoxHead:
    """The box head that MODEL.ROI_BOX_HEAD describes.

    Args:
        cfg, backbone: the config, and what the head pools from.
        reg_weights: scale of its deltas; None: MODEL.ROI_HEADS.BBOX_REG_WEIGHTS.
    """
    head = cfg.MODEL.ROI_BOX_HEAD
    extractor: Any = BOX_EXTRACTORS.get(
        head.FEATURE_EXTRACTOR, "MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR"
    )(cfg, backbone)
    predictor = BOX_PREDICTORS.get(head.PREDICTOR, "MODEL.ROI_BOX_HEAD.PREDICTOR")
    return BoxHead(
        extractor,
        predictor(cfg, extractor.out_channels),
        BoxCoder(reg_weights or cfg.MODEL.ROI_HEADS.BBOX_REG_WEIGHTS),
        box_loss=build_box_loss(cfg, "ROI_BOX_HEAD"),
        class_agnostic=cfg.MODEL.CLS_AGNOSTIC_BBOX_REG,
        inclusive=cfg.MODEL.INCLUSIVE_BOXES,
    )
