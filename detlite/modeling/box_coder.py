"""Box regression: boxes as offsets from reference boxes, and the losses of what is predicted.

The offsets are those of R-CNN (https://arxiv.org/abs/1311.2524, appendix C).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from yacs.config import CfgNode

from .layers.basic import at_least_float32

# Largest dw, dh that is decoded: a box grows at most 1000 / 16 times.
MAX_LOG_SCALE = math.log(1000.0 / 16)


class BoxCoder(nn.Module):
    """Encodes boxes relative to references and back.

    (dx, dy) are the shift of the centre in units of the reference's sides, (dw, dh) the logarithm
    of the ratio of the sides; each is multiplied by its weight. With `limit_shrinking` decoded
    boxes shrink no further than they may grow.
    """

    weights: Tensor

    def __init__(self, weights: Sequence[float], limit_shrinking: bool = False) -> None:
        super().__init__()
        self.least = -MAX_LOG_SCALE if limit_shrinking else None
        # A buffer, because a tensor made of numbers in the forward pass waits for the device.
        self.register_buffer("weights", torch.tensor(tuple(weights)), persistent=False)

    def encode(self, boxes: Tensor, references: Tensor) -> Tensor:
        """Boxes [..., 4] and references [..., 4], xyxy with positive sides -> deltas [..., 4]."""
        centre, size = _centre_size(boxes)
        ref_centre, ref_size = _centre_size(references)
        deltas = torch.cat([(centre - ref_centre) / ref_size, (size / ref_size).log()], dim=-1)
        return deltas * self.weights

    def decode(self, deltas: Tensor, references: Tensor) -> Tensor:
        """Deltas [..., 4] and references [..., 4] -> float32 xyxy boxes [..., 4]."""
        deltas = at_least_float32(deltas) / self.weights
        ref_centre, ref_size = _centre_size(references)
        centre = ref_centre + deltas[..., :2] * ref_size
        half = 0.5 * ref_size * deltas[..., 2:].clamp(self.least, MAX_LOG_SCALE).exp()
        return torch.cat([centre - half, centre + half], dim=-1)


def _centre_size(boxes: Tensor) -> tuple[Tensor, Tensor]:
    low, high = boxes[..., :2], boxes[..., 2:]
    return (low + high) / 2, high - low


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
        unit = torch.arange(4, device=deltas.device) >= 2  # (0, 0, 1, 1), made on the device
        boxes, references = (torch.where(counted[..., None], b, unit) for b in (boxes, references))
        if self.kind == "giou":
            loss = 1 - generalized_iou(coder.decode(deltas, references), boxes)
        else:
            beta = self.beta if self.kind == "smooth_l1" else 0.0
            wanted = coder.encode(boxes, references)
            loss = F.smooth_l1_loss(deltas, wanted, beta=beta, reduction="none").sum(dim=-1)
        return self.weight * torch.where(counted, loss, 0)


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
