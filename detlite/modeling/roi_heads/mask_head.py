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

from detlite.conventions import Convention
from detlite.modeling.backbone import Backbone
from detlite.modeling.layers.conv_block import Block, conv_block, init_he, init_normal
from detlite.modeling.layers.norm import optional_norm
from detlite.ops import crop_masks
from detlite.registry import Registry
from detlite.structures import boxes as box_ops
from detlite.structures.instances import GroundTruth, Samples
from detlite.structures.padding import Rows

from .dense_head import DenseRoIHead, build_dense_head
from .extractors import (
    CONV5_NAMES,
    BuildExtractor,
    ConvFeatureExtractor,
    Extractor,
    build_conv5_extractor,
)
from .pooler import build_pooler

MASK_EXTRACTORS: Registry[BuildExtractor] = Registry(
    "mask feature extractor", on_demand={"FBNet": "detlite.modeling.backbone.fbnet"}
)
MASK_EXTRACTORS.register(*CONV5_NAMES)(partial(build_conv5_extractor, head="ROI_MASK_HEAD"))
# Features [R, C, S, S] -> mask logits [R, K, M, M].
MASK_PREDICTORS: Registry[Callable[[CfgNode, int], nn.Module]] = Registry("mask predictor")


def build_mask_convs(cfg: CfgNode, backbone: Backbone, block: Block = conv_block) -> Extractor:
    """The convolutions that MODEL.ROI_MASK_HEAD describes; `block` makes each 3x3."""
    head = cfg.MODEL.ROI_MASK_HEAD
    return ConvFeatureExtractor(
        build_pooler(cfg, "ROI_MASK_HEAD", backbone),
        backbone.out_channels,
        head.CONV_LAYERS,
        optional_norm(cfg, "ROI_MASK_HEAD"),
        head.DILATION,
        block,
    )


MASK_EXTRACTORS.register("MaskRCNNFPNFeatureExtractor")(build_mask_convs)


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


class MaskHead(DenseRoIHead):
    """Masks of every class, of which that of the true or the detected class is used.

    There may be `more` heads, E in all: their logits are [R, E, K, M, M], and the probabilities are
    their mean, as in mmdetection's Cascade Mask R-CNN. All are trained on the same samples.
    """

    def __init__(
        self, extractor: Extractor | None, predictor: nn.Module, convention: Convention
    ) -> None:
        super().__init__(extractor, predictor, convention)
        self.more = nn.ModuleList()

    def forward(self, features: list[Tensor], rois: Tensor, shared: Tensor | None) -> Tensor:
        """float32 logits [R, K, M, M], or [R, E, K, M, M], of RoIs [R, 5]."""
        logits = super().forward(features, rois, shared)
        if not self.more:
            return logits
        return torch.stack([logits, *(head(features, rois, shared) for head in self.more)], dim=1)

    def losses(
        self, logits: Tensor, rows: Rows, samples: Samples, truth: GroundTruth
    ) -> dict[str, Tensor]:
        """`loss_mask`: mean binary cross entropy of the mask of the true class [R, K, M, M]."""
        assert truth.masks is not None
        selected = _of_labels(logits, rows.pack(samples.labels).clamp(min=0))  # (R, E, M, M)
        instance = rows.image * truth.labels.shape[1] + rows.pack(samples.gt_index)
        wanted = crop_masks(
            *truth.masks.tensors(),
            torch.where(rows.valid, instance, -1),
            box_ops.pooled_region(
                rows.pack(samples.boxes), self.convention
            ).float(),  # as masks are pasted
            logits.shape[-1],
            self.convention.mask_targets == "soft",
        ).to(logits.dtype)
        wanted = wanted[:, None].expand_as(selected)
        loss = F.binary_cross_entropy_with_logits(selected, wanted, reduction="none")
        count = rows.valid.sum() * wanted.shape[1:].numel()
        loss = torch.where(rows.valid[:, None, None, None], loss, 0).sum()
        return {"loss_mask": loss / count.clamp(min=1)}

    def probabilities(self, logits: Tensor, labels: Tensor) -> Tensor:
        """float32 [R, M, M] in 0..1, from logits of every class and labels [R]."""
        probs = _of_labels(logits, labels).sigmoid()
        return probs.mean(dim=1) if self.more else probs[:, 0]


def _of_labels(logits: Tensor, labels: Tensor) -> Tensor:
    """[R, E, M, M] of the labels [R], from logits [R, E, K, M, M], or of one head [R, K, M, M]."""
    rows = torch.arange(labels.shape[0], device=labels.device)
    return logits[rows, :, labels] if logits.dim() == 5 else logits[rows, labels][:, None]


def build_mask_head(cfg: CfgNode, backbone: Backbone, box_extractor: Extractor) -> MaskHead:
    """The mask head that MODEL.ROI_MASK_HEAD describes, see `build_dense_head`."""
    heads = [
        build_dense_head(
            MaskHead,
            cfg,
            "ROI_MASK_HEAD",
            backbone,
            box_extractor,
            MASK_EXTRACTORS,
            MASK_PREDICTORS,
        )
        for _ in range(cfg.MODEL.ROI_MASK_HEAD.NUM_HEADS)
    ]
    heads[0].more.extend(heads[1:])
    return heads[0]
