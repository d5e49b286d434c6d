"""Losses of the classes of boxes: cross entropy and focal loss, with class weights."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from yacs.config import CfgNode


class ClassLoss(nn.Module):
    """Cross entropy of softmax, or its focal loss (https://arxiv.org/abs/1708.02002).

    With p the probability of the true class, the loss of a box is -w (1 - p)^gamma log(p).

    Args:
        gamma: 0 for cross entropy.
        weights: w of each class, the background first; empty: all 1.
    """

    weights: Tensor | None

    def __init__(self, gamma: float = 0.0, weights: Sequence[float] = ()) -> None:
        super().__init__()
        self.gamma = gamma
        values = torch.tensor(weights, dtype=torch.float32) if weights else None
        self.register_buffer("weights", values, persistent=False)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the sum over logits [R, K] and labels [R]; rows with label -1 do not count."""
        if not self.gamma:
            return F.cross_entropy(logits, labels, self.weights, reduction="sum", ignore_index=-1)
        loss = F.cross_entropy(logits, labels, reduction="none", ignore_index=-1)
        # Above 0, where the gradient of a power below 1 is infinite.
        focused = (-torch.expm1(-loss)).clamp(min=1e-7) ** self.gamma * loss
        if self.weights is not None:
            focused = focused * self.weights[labels.clamp(min=0)]
        return focused.sum()


def build_class_loss(cfg: CfgNode) -> ClassLoss:
    """Build the class loss of MODEL.ROI_BOX_HEAD."""
    head, key = cfg.MODEL.ROI_BOX_HEAD, "MODEL.ROI_BOX_HEAD.CLASS_WEIGHTS"
    if len(head.CLASS_WEIGHTS) not in (0, head.NUM_CLASSES):
        raise ValueError(
            f"{key} has {len(head.CLASS_WEIGHTS)} values, but MODEL.ROI_BOX_HEAD.NUM_CLASSES is "
            f"{head.NUM_CLASSES}: give one for the background and one for each category"
        )
    return ClassLoss(head.FOCAL_GAMMA if head.LOSS == "focal" else 0.0, head.CLASS_WEIGHTS)
