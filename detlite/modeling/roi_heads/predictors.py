"""Last layers of box heads: class logits and box deltas.

Shapes: R RoIs, D features, K classes with background as class 0, and Q box regressions per RoI: K,
or 2 if class-agnostic.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from yacs.config import CfgNode

from detlite.modeling.layers.weight_init import init_normal
from detlite.registry import Registry

# Builders of modules from features to (class logits [R, K], box deltas [R, 4 Q]).
BOX_PREDICTORS: Registry[Callable[[CfgNode, int], nn.Module]] = Registry("box predictor")


class BoxPredictor(nn.Module):
    """Predicts class logits and box deltas by a fully connected layer each."""

    def __init__(self, in_channels: int, num_classes: int, num_regressions: int) -> None:
        super().__init__()
        self.cls_score = nn.Linear(in_channels, num_classes)
        self.bbox_pred = nn.Linear(in_channels, num_regressions * 4)
        init_normal(self.cls_score, std=0.01)
        init_normal(self.bbox_pred, std=0.001)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Predict logits [R, K] and deltas [R, 4 Q] from [R, D] or [R, D, S, S]."""
        x = x.mean(dim=(2, 3)) if x.dim() == 4 else x
        return self.cls_score(x), self.bbox_pred(x)


@BOX_PREDICTORS.register("FPNPredictor", "FastRCNNPredictor")
def _build_predictor(cfg: CfgNode, in_channels: int) -> nn.Module:
    num_classes = cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES
    num_regressions = 2 if cfg.MODEL.CLS_AGNOSTIC_BBOX_REG else num_classes
    return BoxPredictor(in_channels, num_classes, num_regressions)
