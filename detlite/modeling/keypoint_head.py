"""Keypoint head (Mask R-CNN, https://arxiv.org/abs/1703.06870, section 5).

Shapes: R regions over all images, S x S pooled, P keypoints an instance, M x M heat maps. G
ground-truth instances in an image.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from yacs.config import CfgNode

from ..registry import Registry
from ..structures import boxes as box_ops
from ..structures.keypoints import from_heatmaps, to_heatmap_cells
from .backbone import Backbone
from .extractors import ConvFeatureExtractor
from .layers import init_he
from .map_head import build_map_head
from .pooler import build_pooler
from .precision import at_least_float32

KEYPOINT_EXTRACTORS: Registry[Callable[[CfgNode, Backbone], nn.Module]] = Registry(
    "keypoint feature extractor"
)
# Features [R, C, S, S] -> heat map logits [R, P, M, M].
KEYPOINT_PREDICTORS: Registry[Callable[[CfgNode, int], nn.Module]] = Registry("keypoint predictor")


@KEYPOINT_EXTRACTORS.register("KeypointRCNNFeatureExtractor")
def _build_convs(cfg: CfgNode, backbone: Backbone) -> nn.Module:
    return ConvFeatureExtractor(
        build_pooler(cfg, "ROI_KEYPOINT_HEAD", backbone),
        backbone.out_channels,
        cfg.MODEL.ROI_KEYPOINT_HEAD.CONV_LAYERS,
    )


class KeypointRCNNPredictor(nn.Module):
    """Doubles the map by a 4x4 transposed convolution, and again by interpolation."""

    def __init__(self, in_channels: int, num_keypoints: int) -> None:
        super().__init__()
        self.kps_score_lowres = nn.ConvTranspose2d(
            in_channels, num_keypoints, 4, stride=2, padding=1
        )
        init_he(self.kps_score_lowres)

    def forward(self, x: Tensor) -> Tensor:
        """[R, C, S, S] -> [R, P, 4 S, 4 S]."""
        return F.interpolate(self.kps_score_lowres(x), scale_factor=2.0, mode="bilinear")


@KEYPOINT_PREDICTORS.register("KeypointRCNNPredictor")
def _build_predictor(cfg: CfgNode, in_channels: int) -> nn.Module:
    return KeypointRCNNPredictor(in_channels, cfg.MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES)


class KeypointHead(nn.Module):
    """Extractor, predictor and their loss.

    Args:
        extractor: one of KEYPOINT_EXTRACTORS; None to share the box head's.
        predictor: one of KEYPOINT_PREDICTORS.
        inclusive: x2 and y2 of a box count the last pixel inside.
    """

    def __init__(
        self, extractor: nn.Module | None, predictor: nn.Module, inclusive: bool = False
    ) -> None:
        super().__init__()
        self.feature_extractor = extractor
        self.predictor = predictor
        self.inclusive = inclusive

    def loss(
        self, x: Tensor, boxes: list[Tensor], targets: list[dict[str, Any]]
    ) -> dict[str, Tensor]:
        """Cross entropy over the cells of each map, averaged over the labelled keypoints.

        Args:
            x: features of the foreground proposals.
            boxes: those proposals, for each image [R_i, 4].
            targets: for each image `matched` [R_i] indices into the ground truth, and `keypoints`
                [G, P, 3].

        Raises:
            ValueError: another number of keypoints than the predictor's.
        """
        logits = at_least_float32(self.predictor(x))
        keypoints = torch.cat([target["keypoints"][target["matched"]] for target in targets])
        if keypoints.shape[1] != logits.shape[1]:
            raise ValueError(
                f"targets have {keypoints.shape[1]} keypoints, but the model "
                f"{logits.shape[1]}: set MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES"
            )
        frames = self._frame(torch.cat(boxes))
        cells, valid = to_heatmap_cells(keypoints, frames, logits.shape[-1])
        # Not a mean, which is NaN where no keypoint is labelled.
        loss = F.cross_entropy(logits.flatten(2)[valid], cells[valid], reduction="sum")
        return {"loss_keypoint": loss / valid.sum().clamp(min=1)}

    def predict(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """`keypoint_logits` float32 [R, P, M, M], the same for all labels [R]."""
        return {"keypoint_logits": at_least_float32(self.predictor(x))}

    def locate(self, logits: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
        """Heat maps [R, P, M, M] of boxes [R, 4] -> keypoints [R, P, 3] and their logits [R, P]."""
        return from_heatmaps(logits, self._frame(boxes))

    def _frame(self, boxes: Tensor) -> Tensor:
        """What the maps of boxes [R, 4] cover."""
        return box_ops.drop_last_pixel(boxes) if self.inclusive else boxes


def build_keypoint_head(cfg: CfgNode, backbone: Backbone, box_extractor: nn.Module) -> KeypointHead:
    """The keypoint head that MODEL.ROI_KEYPOINT_HEAD describes.

    Raises:
        ValueError: a RESOLUTION that is not what the head gives, or a box head without maps to
            share.
    """
    extractor, predictor = build_map_head(
        cfg, "ROI_KEYPOINT_HEAD", backbone, box_extractor, KEYPOINT_EXTRACTORS, KEYPOINT_PREDICTORS
    )
    return KeypointHead(extractor, predictor, inclusive=cfg.MODEL.INCLUSIVE_BOXES)
