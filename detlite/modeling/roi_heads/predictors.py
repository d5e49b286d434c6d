"""Last layers of the RoI heads.

Shapes: R RoIs, C features, S x S pooled, K classes with background as class 0, and Q box
regressions per RoI: K, or 2 if class-agnostic. Mask and keypoint maps have M x M cells.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from yacs.config import CfgNode

from detlite.errors import ConfigError
from detlite.modeling.layers.conv_block import init_he, init_normal
from detlite.registry import Registry

# Builders (cfg, C) of modules. Their input is features [R, C, S, S], or also [R, C] for boxes.
BuildPredictor = Callable[[CfgNode, int], nn.Module]
# Their outputs: class logits [R, K] and box deltas [R, 4 Q]. They have a `classification_loss`, see
# `BoxPredictor`.
BOX_PREDICTORS: Registry[Callable[[CfgNode, int], Any]] = Registry("box predictor")
# mask logits [R, K, M, M]
MASK_PREDICTORS: Registry[BuildPredictor] = Registry("mask predictor")
# heat map logits [R, keypoints, M, M]
KEYPOINT_PREDICTORS: Registry[BuildPredictor] = Registry("keypoint predictor")
_REGISTRIES = {
    "ROI_BOX_HEAD": BOX_PREDICTORS,
    "ROI_MASK_HEAD": MASK_PREDICTORS,
    "ROI_KEYPOINT_HEAD": KEYPOINT_PREDICTORS,
}


def build_predictor(cfg: CfgNode, section: str, in_channels: int) -> Any:
    """Build the predictor of MODEL.<section>: "ROI_BOX_HEAD", "ROI_MASK_HEAD", ...

    Raises:
        ConfigError: the name is not registered, or the box predictor has no loss.
    """
    name, key = cfg.MODEL[section].PREDICTOR, f"MODEL.{section}.PREDICTOR"
    predictor = _REGISTRIES[section].get(name, key)(cfg, in_channels)
    if section == "ROI_BOX_HEAD" and not isinstance(predictor, BoxPredictor):
        raise ConfigError(f"{key}: {name} must build a subclass of detlite.modeling.BoxPredictor")
    return predictor


class BoxPredictor(nn.Module):
    """Predicts class logits and box deltas by a fully connected layer each.

    Override `classification_loss` for another loss of the box head.
    """

    def __init__(self, in_channels: int, num_classes: int, num_regressions: int) -> None:
        super().__init__()
        self.cls_score = nn.Linear(in_channels, num_classes)
        self.bbox_pred = nn.Linear(in_channels, num_regressions * 4)
        init_normal(self.cls_score, std=0.01)
        init_normal(self.bbox_pred, std=0.001)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Predict logits [R, K] and deltas [R, 4 Q] from [R, C] or [R, C, S, S]."""
        x = x.mean(dim=(2, 3)) if x.dim() == 4 else x
        return self.cls_score(x), self.bbox_pred(x)

    def classification_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each row, float32 [R], of logits [R, K]; 0 for a label of -1."""
        return F.cross_entropy(logits, labels, reduction="none", ignore_index=-1)


@BOX_PREDICTORS.register("FPNPredictor", "FastRCNNPredictor")
def _build_box_predictor(cfg: CfgNode, in_channels: int) -> nn.Module:
    num_classes = cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES
    num_regressions = 2 if cfg.MODEL.CLS_AGNOSTIC_BBOX_REG else num_classes
    return BoxPredictor(in_channels, num_classes, num_regressions)


class MaskPredictor(nn.Module):
    """Predicts a logit for each class at each cell.

    If `width` is set, a 2x2 transposed convolution to `width` channels first doubles the map.
    """

    def __init__(self, in_channels: int, num_classes: int, width: int | None = None) -> None:
        super().__init__()
        self.conv5_mask = None
        if width is not None:
            self.conv5_mask = nn.ConvTranspose2d(in_channels, width, 2, stride=2)
        self.mask_fcn_logits = nn.Conv2d(width or in_channels, num_classes, 1)
        if self.conv5_mask is not None:
            init_he(self.conv5_mask)
        init_normal(self.mask_fcn_logits, std=0.001)

    def forward(self, x: Tensor) -> Tensor:
        """Predict [R, K, 2 S, 2 S], or [R, K, S, S] without `width`, from [R, C, S, S]."""
        x = x if self.conv5_mask is None else F.relu(self.conv5_mask(x))
        return self.mask_fcn_logits(x)


@MASK_PREDICTORS.register("MaskRCNNC4Predictor", "MaskRCNNConv1x1Predictor")
def _build_mask_predictor(cfg: CfgNode, in_channels: int) -> nn.Module:
    head, num_classes = cfg.MODEL.ROI_MASK_HEAD, cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES
    width = head.CONV_LAYERS[-1] if head.PREDICTOR == "MaskRCNNC4Predictor" else None
    return MaskPredictor(in_channels, num_classes, width)


class KeypointRCNNPredictor(nn.Module):
    """Doubles the map by a 4x4 transposed convolution, and again by interpolation."""

    def __init__(self, in_channels: int, num_keypoints: int) -> None:
        super().__init__()
        self.kps_score_lowres = nn.ConvTranspose2d(
            in_channels, num_keypoints, 4, stride=2, padding=1
        )
        init_he(self.kps_score_lowres)

    def forward(self, x: Tensor) -> Tensor:
        """Predict [R, keypoints, 4 S, 4 S] from [R, C, S, S]."""
        return F.interpolate(self.kps_score_lowres(x), scale_factor=2.0, mode="bilinear")


@KEYPOINT_PREDICTORS.register("KeypointRCNNPredictor")
def _build_keypoint_predictor(cfg: CfgNode, in_channels: int) -> nn.Module:
    return KeypointRCNNPredictor(in_channels, cfg.MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES)
