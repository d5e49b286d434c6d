"""Last layers of box heads: class logits and box deltas.

Shapes: R RoIs, K classes with background as class 0, and Q box regressions a RoI: K, or 2 when they
are class-agnostic.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from yacs.config import CfgNode

from ..registry import Registry
from .layers import init_normal

# Features -> (class logits [R, K], box deltas [R, 4 Q]).
BOX_PREDICTORS: Registry[Callable[[CfgNode, int], nn.Module]] = Registry("box predictor")


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
