"""Losses of box regression: on deltas, or on the boxes that they stand for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
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
        self,
        coder: BoxCoder,
        deltas: Tensor,
        boxes: Tensor,
        references: Tensor,
        counted: Tensor,
    ) -> Tensor:
        """The loss of each box [...]; 0 where it is not counted.

        Args:
            coder: what the deltas are encoded by.
            deltas: [..., 4], predicted.
            boxes: [..., 4] xyxy, the ground truth of each.
            references: [..., 4] xyxy, the anchors or proposals that the deltas refer to.
            counted: bool [...]; the boxes of the others may be anything, such as padding.
        """
        # Before anything is computed: a NaN times zero is a NaN, in the gradient as well.
        deltas = torch.where(counted[..., None], deltas, 0)
        boxes, references = (
            torch.where(counted[..., None], b, self._unit(b)) for b in (boxes, references)
        )
        if self.kind == "giou":
            loss = 1 - generalized_iou(coder.decode(deltas, references), boxes)
        else:
            beta = self.beta if self.kind == "smooth_l1" else 0.0
            wanted = coder.encode(boxes, references)
            loss = F.smooth_l1_loss(deltas, wanted, beta=beta, reduction="none").sum(dim=-1)
        return self.weight * torch.where(counted, loss, 0)

    @staticmethod
    def _unit(like: Tensor) -> Tensor:
        """The box (0, 0, 1, 1), made on the device."""
        return (torch.arange(4, device=like.device) >= 2).to(like.dtype)


def generalized_iou(a: Tensor, b: Tensor) -> Tensor:
    """GIoU [...] in -1..1 of pairs of boxes [..., 4] (https://arxiv.org/abs/1902.09630).

    torchvision's, without its masks: an index of bools, and the gradient of `prod`, wait for the
    device.
    """
    shared = torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])
    around = torch.maximum(a[..., 2:], b[..., 2:]) - torch.minimum(a[..., :2], b[..., :2])
    both = torch.where((shared > 0).all(dim=-1), shared[..., 0] * shared[..., 1], 0)
    hull = around[..., 0] * around[..., 1]
    sides_a, sides_b = a[..., 2:] - a[..., :2], b[..., 2:] - b[..., :2]
    union = sides_a[..., 0] * sides_a[..., 1] + sides_b[..., 0] * sides_b[..., 1] - both
    return both / (union + 1e-7) - (hull - union) / (hull + 1e-7)


def build_box_loss(cfg: CfgNode, part: str) -> BoxLoss:
    """The box loss of a part of the model, RPN or ROI_BOX_HEAD."""
    node = cfg.MODEL[part]
    return BoxLoss(node.BOX_LOSS, node.SMOOTH_L1_BETA, node.BOX_LOSS_WEIGHT)
