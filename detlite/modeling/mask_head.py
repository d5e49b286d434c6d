"""Mask head (Mask R-CNN, https://arxiv.org/abs/1703.06870): a mask for each detection.

Shapes: R regions over all images, S x S pooled, M x M predicted, K classes with background as
class 0. G ground-truth instances in an image of H x W pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from yacs.config import CfgNode

from ..ops.roi_align import roi_align
from ..registry import Registry
from ..structures import boxes as box_ops
from .backbone import Backbone
from .extractors import ConvFeatureExtractor, build_conv5_extractor
from .layers import init_he, init_normal
from .map_head import build_map_head
from .norm import optional_norm
from .pooler import build_pooler
from .precision import at_least_float32

MASK_EXTRACTORS: Registry[Callable[[CfgNode, Backbone], nn.Module]] = Registry(
    "mask feature extractor"
)
# Features [R, C, S, S] -> mask logits [R, K, M, M].
MASK_PREDICTORS: Registry[Callable[[CfgNode, int], nn.Module]] = Registry("mask predictor")


@MASK_EXTRACTORS.register("MaskRCNNFPNFeatureExtractor")
def _build_convs(cfg: CfgNode, backbone: Backbone) -> nn.Module:
    head = cfg.MODEL.ROI_MASK_HEAD
    return ConvFeatureExtractor(
        build_pooler(cfg, "ROI_MASK_HEAD", backbone),
        backbone.out_channels,
        head.CONV_LAYERS,
        optional_norm(cfg, "ROI_MASK_HEAD"),
        head.DILATION,
    )


@MASK_EXTRACTORS.register(
    "ResNetConv5ROIFeatureExtractor",
    "ResNet50Conv5ROIFeatureExtractor",
    "ResNet101Conv5ROIFeatureExtractor",
)
def _build_conv5(cfg: CfgNode, backbone: Backbone) -> nn.Module:
    return build_conv5_extractor(cfg, backbone, "ROI_MASK_HEAD")


class MaskRCNNC4Predictor(nn.Module):
    """Doubles the map by a 2x2 transposed convolution, then one logit for each class.

    Args:
        in_channels: C.
        width: channels in between.
        num_classes: K.
    """

    def __init__(self, in_channels: int, width: int, num_classes: int) -> None:
        super().__init__()
        self.conv5_mask = nn.ConvTranspose2d(in_channels, width, 2, stride=2)
        self.mask_fcn_logits = nn.Conv2d(width, num_classes, 1)
        init_he(self.conv5_mask)
        init_normal(self.mask_fcn_logits, std=0.001)

    def forward(self, x: Tensor) -> Tensor:
        """[R, C, S, S] -> [R, K, 2 S, 2 S]."""
        return self.mask_fcn_logits(F.relu(self.conv5_mask(x)))


class MaskRCNNConv1x1Predictor(nn.Module):
    """One logit for each of K classes, at the size of the features."""

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        self.mask_fcn_logits = nn.Conv2d(in_channels, num_classes, 1)
        init_normal(self.mask_fcn_logits, std=0.001)

    def forward(self, x: Tensor) -> Tensor:
        """[R, C, S, S] -> [R, K, S, S]."""
        return self.mask_fcn_logits(x)


@MASK_PREDICTORS.register("MaskRCNNC4Predictor")
def _build_c4_predictor(cfg: CfgNode, in_channels: int) -> nn.Module:
    width = cfg.MODEL.ROI_MASK_HEAD.CONV_LAYERS[-1]
    return MaskRCNNC4Predictor(in_channels, width, cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES)


@MASK_PREDICTORS.register("MaskRCNNConv1x1Predictor")
def _build_1x1_predictor(cfg: CfgNode, in_channels: int) -> nn.Module:
    return MaskRCNNConv1x1Predictor(in_channels, cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES)


class MaskHead(nn.Module):
    """Extractor, predictor and their loss.

    Args:
        extractor: None to share the box head's.
        predictor: one of MASK_PREDICTORS.
        soft_targets: train on the cropped masks as they are, see `crop_masks`.
        inclusive: x2 and y2 of a box count the last pixel inside.
    """

    def __init__(
        self,
        extractor: nn.Module | None,
        predictor: nn.Module,
        soft_targets: bool = False,
        inclusive: bool = False,
    ) -> None:
        super().__init__()
        self.feature_extractor = extractor
        self.predictor = predictor
        self.soft_targets = soft_targets
        self.inclusive = inclusive

    def loss(
        self, x: Tensor, boxes: list[Tensor], targets: list[dict[str, Any]]
    ) -> dict[str, Tensor]:
        """Mean binary cross entropy of the mask of the true class, over foreground proposals.

        Args:
            x: features of the foreground proposals.
            boxes: those proposals, for each image [R_i, 4].
            targets: for each image `labels` [R_i], `matched` [R_i] indices into the ground truth,
                and `masks` uint8 [G, H, W].
        """
        logits = at_least_float32(self.predictor(x))
        labels = torch.cat([target["labels"] for target in targets])
        selected = logits[torch.arange(len(labels), device=labels.device), labels]  # (R, M, M)
        wanted = torch.cat(
            [
                crop_masks(
                    target["masks"],
                    target["matched"],
                    # as masks are pasted
                    box_ops.drop_last_pixel(own_boxes) if self.inclusive else own_boxes,
                    logits.shape[-1],
                    soft=self.soft_targets,
                )
                for target, own_boxes in zip(targets, boxes, strict=True)
            ]
        )
        loss = F.binary_cross_entropy_with_logits(selected, wanted, reduction="sum")
        return {"loss_mask": loss / max(wanted.numel(), 1)}

    def predict(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """`mask_probs` float32 [R, M, M] of the given labels [R]."""
        logits = at_least_float32(self.predictor(x))
        chosen = logits[torch.arange(len(labels), device=labels.device), labels]
        return {"mask_probs": chosen.sigmoid()}


def crop_masks(
    masks: Tensor, index: Tensor, boxes: Tensor, resolution: int, soft: bool = False
) -> Tensor:
    """Resamples ground-truth masks into boxes, by the same average that pools features.

    Args:
        masks: uint8 or bool [G, H, W].
        index: [R], which mask belongs to each box.
        boxes: [R, 4] xyxy.
        resolution: M.
        soft: do not threshold the average, nor shift it by half a pixel (torchvision).

    Returns:
        float32 [R, M, M] of 0 and 1; if `soft`, of 0..1.
    """
    if len(index) == 0:
        return boxes.new_zeros((0, resolution, resolution))
    # Only instances that some box stands for are turned into floats.
    used, position = index.unique(return_inverse=True)
    rois = torch.cat([position[:, None].to(boxes.dtype), boxes], dim=1)
    size = (resolution, resolution)
    crops = roi_align(masks[used, None].to(boxes.dtype), rois, size, 1.0, 0, aligned=not soft)
    return crops[:, 0] if soft else (crops[:, 0] >= 0.5).to(crops.dtype)


def build_mask_head(cfg: CfgNode, backbone: Backbone, box_extractor: nn.Module) -> MaskHead:
    """The mask head that MODEL.ROI_MASK_HEAD describes.

    Raises:
        ValueError: a RESOLUTION that is not what the head gives, or a box head without maps to
            share.
    """
    extractor, predictor = build_map_head(
        cfg, "ROI_MASK_HEAD", backbone, box_extractor, MASK_EXTRACTORS, MASK_PREDICTORS
    )
    soft = cfg.MODEL.ROI_MASK_HEAD.TARGETS == "soft"
    return MaskHead(extractor, predictor, soft, inclusive=cfg.MODEL.INCLUSIVE_BOXES)
