"""Losses of box regression: on deltas, or on the boxes that they stand for."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F
from torchvision.ops import generalized_box_iou_loss
from yacs.config import CfgNode

from .box_coder import BoxCoder


@dataclass(frozen=True)
class BoxLoss:
    """How far regressed boxes are from the ground truth.

    Attributes:
        kind: "smooth_l1" (Fast R-CNN, https://arxiv.org/abs/1504.08083) or "l1" of the deltas, or
            "giou" of the boxes: 1 - GIoU, 0 to 2 a box (https://arxiv.org/abs/1902.09630).
        beta: of smooth L1, the width of its quadratic part in units of the deltas; 0: L1.
        weight: factor of the loss.
    """

    kind: str = "smooth_l1"
    beta: float = 1.0
    weight: float = 1.0

    def __call__(
        self, coder: BoxCoder, deltas: Tensor, boxes: Tensor, references: Tensor
    ) -> Tensor:
        """The sum over N boxes.

        Args:
            coder: what the deltas are encoded by.
            deltas: [N, 4], predicted.
            boxes: [N, 4] xyxy, the ground truth of each.
            references: [N, 4] xyxy, the anchors or proposals that the deltas refer to.
        """
        if self.kind == "giou":
            decoded = coder.decode(deltas, references)
            return self.weight * generalized_box_iou_loss(decoded, boxes, reduction="sum")
        beta = self.beta if self.kind == "smooth_l1" else 0.0
        wanted = coder.encode(boxes, references)
        return self.weight * F.smooth_l1_loss(deltas, wanted, beta=beta, reduction="sum")


def build_box_loss(cfg: CfgNode, part: str) -> BoxLoss:
    """The box loss of a part of the model, RPN or ROI_BOX_HEAD."""
    node = cfg.MODEL[part]
    return BoxLoss(node.BOX_LOSS, node.SMOOTH_L1_BETA, node.BOX_LOSS_WEIGHT)
