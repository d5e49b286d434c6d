"""Box head (Fast R-CNN, https://arxiv.org/abs/1504.08083): classifies and refines proposals.

Shapes: R proposals over all images, S x S pooled, K classes with background as class 0, and Q box
regressions a proposal: K, or 2 when they are class-agnostic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from yacs.config import CfgNode

from ..registry import Registry
from ..structures import boxes as box_ops
from .backbone import Backbone
from .backbone.build import resnet_spec
from .backbone.resnet import make_stage
from .box_coder import BoxCoder
from .box_loss import BoxLoss, build_box_loss
from .layers import conv_block, init_normal, init_xavier
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
class FPN2MLPFeatureExtractor(nn.Module):
    """Pools and applies two fully connected layers."""

    def __init__(self, cfg: CfgNode, backbone: Backbone) -> None:
        super().__init__()
        head = cfg.MODEL.ROI_BOX_HEAD
        self.pooler = build_pooler(cfg, "ROI_BOX_HEAD", backbone.strides[: backbone.pooled])
        self.out_channels = head.MLP_HEAD_DIM
        in_features = backbone.out_channels * head.POOLER_RESOLUTION**2
        norm = optional_norm(cfg, "ROI_BOX_HEAD")
        self.fc6 = nn.Linear(in_features, head.MLP_HEAD_DIM, bias=norm is None)
        self.fc7 = nn.Linear(head.MLP_HEAD_DIM, head.MLP_HEAD_DIM, bias=norm is None)
        self.norm6 = norm(head.MLP_HEAD_DIM) if norm else nn.Identity()
        self.norm7 = norm(head.MLP_HEAD_DIM) if norm else nn.Identity()
        for layer in (self.fc6, self.fc7):
            init_xavier(layer)

    def forward(self, features: list[Tensor], boxes: list[Tensor]) -> Tensor:
        """Levels [B, C, H_l, W_l] and boxes of each image -> [R, MLP_HEAD_DIM]."""
        x = self.pooler(features, boxes).flatten(1)  # (R, C S S)
        x = F.relu(self.norm6(self.fc6(x)[..., None, None]))  # norms are those of maps
        return F.relu(self.norm7(self.fc7(x.flatten(1))[..., None, None])).flatten(1)


@BOX_EXTRACTORS.register("FPNXconv1fcFeatureExtractor")
class FPNXconv1fcFeatureExtractor(nn.Module):
    """Pools and applies a row of 3x3 convolutions, then one fully connected layer."""

    def __init__(self, cfg: CfgNode, backbone: Backbone) -> None:
        super().__init__()
        head = cfg.MODEL.ROI_BOX_HEAD
        self.pooler = build_pooler(cfg, "ROI_BOX_HEAD", backbone.strides[: backbone.pooled])
        norm = optional_norm(cfg, "ROI_BOX_HEAD")
        widths = [backbone.out_channels] + [head.CONV_HEAD_DIM] * head.NUM_STACKED_CONVS
        self.convs = nn.Sequential(
            *(
                conv_block(a, b, 3, norm=norm, relu=True, dilation=head.DILATION)
                for a, b in pairwise(widths)
            )
        )
        self.out_channels = head.MLP_HEAD_DIM
        self.fc6 = nn.Linear(widths[-1] * head.POOLER_RESOLUTION**2, head.MLP_HEAD_DIM)
        init_xavier(self.fc6)

    def forward(self, features: list[Tensor], boxes: list[Tensor]) -> Tensor:
        """Levels [B, C, H_l, W_l] and boxes of each image -> [R, MLP_HEAD_DIM]."""
        x = self.convs(self.pooler(features, boxes))  # (R, CONV_HEAD_DIM, S, S)
        return F.relu(self.fc6(x.flatten(1)))


@BOX_EXTRACTORS.register(
    "ResNetConv5ROIFeatureExtractor",
    "ResNet50Conv5ROIFeatureExtractor",
    "ResNet101Conv5ROIFeatureExtractor",
)
class ResNetConv5ROIFeatureExtractor(nn.Module):
    """Pools from a C4 map and applies the body's last stage, as deep as CONV_BODY says."""

    def __init__(self, cfg: CfgNode, backbone: Backbone, head: str = "ROI_BOX_HEAD") -> None:
        super().__init__()
        self.pooler = build_pooler(cfg, head, backbone.strides[: backbone.pooled])
        spec = resnet_spec(cfg)
        if backbone.out_channels != spec.channels(4):
            raise ValueError(
                f"MODEL.{head}.FEATURE_EXTRACTOR applies the stage res5 to {spec.channels(4)} "
                f"channels, but {cfg.MODEL.BACKBONE.CONV_BODY} gives {backbone.out_channels}: "
                "use a C4 body, or an FPN head such as FPN2MLPFeatureExtractor"
            )
        dilation = cfg.MODEL.RESNETS.RES5_DILATION
        self.res5 = make_stage(spec, 5, stride=2 // dilation, dilation=dilation)
        self.out_channels = spec.channels(5)
        self.out_resolution = -(-cfg.MODEL[head].POOLER_RESOLUTION * dilation // 2)

    def forward(self, features: list[Tensor], boxes: list[Tensor]) -> Tensor:
        """One map [B, C, H, W] and boxes of each image -> [R, 2 C, S / 2, S / 2]."""
        return self.res5(self.pooler(features, boxes))


class _Predictor(nn.Module):
    """Class logits and box deltas from a vector for each proposal."""

    def __init__(self, cfg: CfgNode, in_channels: int) -> None:
        super().__init__()
        num_classes = cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES
        num_regressions = 2 if cfg.MODEL.CLS_AGNOSTIC_BBOX_REG else num_classes
        self.cls_score = nn.Linear(in_channels, num_classes)
        self.bbox_pred = nn.Linear(in_channels, num_regressions * 4)
        init_normal(self.cls_score, std=0.01)
        init_normal(self.bbox_pred, std=0.001)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[R, D] -> logits [R, K], deltas [R, 4 Q]."""
        return self.cls_score(x), self.bbox_pred(x)


@BOX_PREDICTORS.register("FPNPredictor")
class FPNPredictor(_Predictor):
    """For extractors that end in a vector."""


@BOX_PREDICTORS.register("FastRCNNPredictor")
class FastRCNNPredictor(_Predictor):
    """For extractors that end in a map, which is averaged."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[R, D, S, S] -> logits [R, K], deltas [R, 4 Q]."""
        return super().forward(x.mean(dim=(2, 3)))


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
