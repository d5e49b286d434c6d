"""Double-Head R-CNN (Wu et al., https://arxiv.org/abs/1904.06493).

Fully connected layers classify, and convolutions refine the box. Shapes: R RoIs, C channels, S x S
pooled, K classes with background.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from yacs.config import CfgNode

from detlite.modeling import (
    BOX_EXTRACTORS,
    BOX_PREDICTORS,
    Backbone,
    BoxPredictor,
    Extractor,
    FPN2MLPFeatureExtractor,
    Pooler,
    build_norm,
    build_pooler,
    conv_block,
)


class DoubleExtractor(Extractor):
    """Two fully connected layers, and residual blocks with a mean over the cells."""

    def __init__(self, pooler: Pooler, in_channels: int, fc: nn.Module, convs: nn.Module,
                 widths: tuple[int, int]) -> None:  # fmt: skip
        super().__init__()
        self.pooler, self.fc, self.convs = pooler, fc, convs
        self.out_channels = sum(widths)

    def embed(self, pooled: Tensor) -> Tensor:
        """Compute [R, widths[0] + widths[1]] from [R, C, S, S]."""
        return torch.cat([self.fc.embed(pooled), self.convs(pooled).mean(dim=(2, 3))], dim=1)


class Residual(nn.Module):
    """A block of two 3x3 convolutions and a shortcut."""

    def __init__(self, in_channels: int, width: int, norm: object) -> None:
        super().__init__()
        self.first = conv_block(in_channels, width, 3, norm=norm, relu=True)
        self.second = conv_block(width, width, 3, norm=norm)
        self.shortcut = nn.Conv2d(in_channels, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Compute [R, width, S, S] from [R, C, S, S]."""
        return F.relu(self.second(self.first(x)) + self.shortcut(x))


class DoublePredictor(BoxPredictor):
    """Classifies by the first part of the features, and refines boxes by the rest."""

    def __init__(self, widths: tuple[int, int], num_classes: int, num_regressions: int) -> None:
        super().__init__(widths[0], num_classes, num_regressions)
        self.widths = widths
        self.bbox_pred = nn.Linear(widths[1], num_regressions * 4)
        nn.init.normal_(self.bbox_pred.weight, std=0.001)
        nn.init.zeros_(self.bbox_pred.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Predict logits [R, K] and deltas [R, 4 Q] from features [R, C]."""
        fc, conv = x.split(self.widths, dim=1)
        return self.cls_score(fc), self.bbox_pred(conv)


def _widths(cfg: CfgNode) -> tuple[int, int]:
    head = cfg.MODEL.ROI_BOX_HEAD
    return head.MLP_HEAD_DIM, head.CONV_HEAD_DIM


@BOX_EXTRACTORS.register("DoubleExtractor")
def build_extractor(cfg: CfgNode, backbone: Backbone) -> DoubleExtractor:
    """Build MLP_HEAD_DIM hidden units, and NUM_STACKED_CONVS blocks of CONV_HEAD_DIM channels."""
    head, (fc_width, conv_width) = cfg.MODEL.ROI_BOX_HEAD, _widths(cfg)
    pooler, channels = build_pooler(cfg, "ROI_BOX_HEAD", backbone), backbone.out_channels
    fc = FPN2MLPFeatureExtractor(pooler, channels, fc_width)
    norm = build_norm(cfg, head.NORM or "GN")
    inputs = [channels, *[conv_width] * (head.NUM_STACKED_CONVS - 1)]
    convs = nn.Sequential(*(Residual(width, conv_width, norm) for width in inputs))
    return DoubleExtractor(pooler, channels, fc, convs, (fc_width, conv_width))


@BOX_PREDICTORS.register("DoublePredictor")
def build_predictor(cfg: CfgNode, in_channels: int) -> DoublePredictor:
    """Build the last layers of both heads."""
    num_classes = cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES
    return DoublePredictor(_widths(cfg), num_classes, num_classes)
