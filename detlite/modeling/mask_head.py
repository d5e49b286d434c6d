"""Mask head (Mask R-CNN, https://arxiv.org/abs/1703.06870): a mask for each detection.

Shapes: R rows that are computed (see `structures.rows`), S x S pooled, M x M predicted, K classes
with background as class 0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from yacs.config import CfgNode

from ..ops import crop_masks
from ..registry import Registry
from ..structures.instances import GroundTruth, Samples
from ..structures.rows import Rows
from .backbone import Backbone
from .extractors import (
    CONV5_NAMES,
    BuildExtractor,
    ConvFeatureExtractor,
    Extractor,
    build_conv5_extractor,
)
from .layers import init_he, init_normal
from .map_head import MapHead
from .norm import optional_norm
from .pooler import build_pooler

MASK_EXTRACTORS: Registry[BuildExtractor] = Registry("mask feature extractor")
MASK_EXTRACTORS.register(*CONV5_NAMES)(partial(build_conv5_extractor, head="ROI_MASK_HEAD"))
# Features [R, C, S, S] -> mask logits [R, K, M, M].
MASK_PREDICTORS: Registry[Callable[[CfgNode, int], nn.Module]] = Registry("mask predictor")


@MASK_EXTRACTORS.register("MaskRCNNFPNFeatureExtractor")
def _build_convs(cfg: CfgNode, backbone: Backbone) -> Extractor:
    head = cfg.MODEL.ROI_MASK_HEAD
    return ConvFeatureExtractor(
        build_pooler(cfg, "ROI_MASK_HEAD", backbone),
        backbone.out_channels,
        head.CONV_LAYERS,
        optional_norm(cfg, "ROI_MASK_HEAD"),
        head.DILATION,
    )


class MaskRCNNC4Predictor(nn.Module):
    """Doubles the map by a 2x2 transposed convolution, then one logit for each of K classes."""

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


class MaskHead(MapHead):
    """Masks of every class, of which that of the true or the detected class is used."""

    def losses(
        self, logits: Tensor, rows: Rows, samples: Samples, truth: GroundTruth
    ) -> dict[str, Tensor]:
        """`loss_mask`: mean binary cross entropy of the mask of the true class [R, K, M, M]."""
        assert truth.masks is not None
        selected = _of_labels(logits, rows.pack(samples.labels).clamp(min=0))  # (R, M, M)
        instance = rows.image * truth.labels.shape[1] + rows.pack(samples.gt_index)
        wanted = crop_masks(
            *truth.masks.tensors(),
            torch.where(rows.valid, instance, -1),
            self.convention.pooled(rows.pack(samples.boxes)).float(),  # as masks are pasted
            logits.shape[-1],
            self.convention.mask_targets == "soft",
        ).to(logits.dtype)
        loss = F.binary_cross_entropy_with_logits(selected, wanted, reduction="none")
        count = rows.valid.sum() * wanted.shape[1:].numel()
        loss = torch.where(rows.valid[:, None, None], loss, 0).sum()
        return {"loss_mask": loss / count.clamp(min=1)}

    def probabilities(self, logits: Tensor, labels: Tensor) -> Tensor:
        """float32 [R, M, M] in 0..1, from logits [R, K, M, M] and labels [R]."""
        return _of_labels(logits, labels).sigmoid()


def _of_labels(logits: Tensor, labels: Tensor) -> Tensor:
    return logits[torch.arange(labels.shape[0], device=labels.device), labels]
