"""Losses of boxes: smooth L1, L1, generalized IoU, and registered ones."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from yacs.config import CfgNode

from detlite.registry import Registry

from .box_coder import BoxCoder

# Functions of predicted and ground truth boxes [..., 4], both xyxy: the loss [...] of each pair.
BOX_LOSSES: Registry[Callable[[Tensor, Tensor], Tensor]] = Registry("box loss")
BOX_LOSSES.register("giou")(lambda boxes, truth: 1 - generalized_iou(boxes, truth))
_OF_DELTAS = ("smooth_l1", "l1")


@dataclass(frozen=True)
class BoxLoss:
    """Loss between predicted box deltas and ground truth boxes.

    The kinds are "smooth_l1" (Fast R-CNN, https://arxiv.org/abs/1504.08083) or "l1" of the deltas,
    and those of the boxes: "giou", which is 1 - GIoU, 0 to 2 per box
    (https://arxiv.org/abs/1902.09630), or a registered one.
    """

    kind: str = "smooth_l1"
    beta: float = 1.0  # width of the quadratic part of smooth L1, in units of the deltas
    weight: float = 1.0  # factor of the loss

    def __call__(
        self, coder: BoxCoder, deltas: Tensor, boxes: Tensor, references: Tensor, counted: Tensor
    ) -> Tensor:
        """Return the loss [...] of predicted deltas [..., 4] for ground truth boxes [..., 4].

        The loss of boxes that are not `counted`, bool [...], is 0, whatever their values.
        """
        # Mask the inputs, because NaN times zero is NaN, in the gradient as well.
        mask = counted[..., None]
        deltas = torch.where(mask, deltas, 0)
        unit_box = torch.arange(4, device=deltas.device) >= 2  # (0, 0, 1, 1)
        boxes, references = (torch.where(mask, x, unit_box) for x in (boxes, references))
        if self.kind in _OF_DELTAS:
            target = coder.encode(boxes, references)
            beta = self.beta if self.kind == "smooth_l1" else 0.0
            loss = F.smooth_l1_loss(deltas, target, beta=beta, reduction="none").sum(dim=-1)
        else:
            loss = BOX_LOSSES.get(self.kind)(coder.decode(deltas, references), boxes)
        return self.weight * torch.where(counted, loss, 0)


def generalized_iou(a: Tensor, b: Tensor) -> Tensor:
    """Return the GIoU [...], in -1..1, of pairs of boxes [..., 4].

    The same as torchvision's, without the operations that wait for the device: boolean indexing
    and the gradient of `prod`.
    """
    low, high = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
    intersection = torch.where((high > low).all(dim=-1), _area(low, high), 0)
    union = _area(a[..., :2], a[..., 2:]) + _area(b[..., :2], b[..., 2:]) - intersection
    low, high = torch.minimum(a[..., :2], b[..., :2]), torch.maximum(a[..., 2:], b[..., 2:])
    hull = _area(low, high)
    return intersection / (union + 1e-7) - (hull - union) / (hull + 1e-7)


def _area(low: Tensor, high: Tensor) -> Tensor:
    sides = high - low
    return sides[..., 0] * sides[..., 1]


def build_box_loss(cfg: CfgNode, section: str) -> BoxLoss:
    """Build the box loss of MODEL.<section>: "RPN", "RETINANET" or "ROI_BOX_HEAD"."""
    node = cfg.MODEL[section]
    if node.BOX_LOSS not in _OF_DELTAS:
        BOX_LOSSES.get(node.BOX_LOSS, f"MODEL.{section}.BOX_LOSS")
    if section == "RETINANET":
        return BoxLoss(node.BOX_LOSS, node.BBOX_REG_BETA, 1 / node.BBOX_REG_WEIGHT)
    return BoxLoss(node.BOX_LOSS, node.SMOOTH_L1_BETA, node.BOX_LOSS_WEIGHT)
