"""Encode boxes relative to reference boxes (R-CNN, https://arxiv.org/abs/1311.2524, appendix C)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from detlite.modeling.precision import at_least_float32

# Largest decoded dw and dh: a box becomes at most 1000 / 16 times as wide or high.
MAX_LOG_SCALE = math.log(1000.0 / 16)


class BoxCoder(nn.Module):
    """Encodes boxes relative to reference boxes, and decodes them.

    (dx, dy) is the shift of the center in units of the reference's sides, (dw, dh) the logarithm of
    the ratio of the sides. Each is multiplied by its weight.

    Args:
        weights: of dx, dy, dw and dh.
        limit_shrinking: clamp dw and dh from below too, at -MAX_LOG_SCALE.
    """

    weights: Tensor

    def __init__(self, weights: Sequence[float], limit_shrinking: bool = False) -> None:
        super().__init__()
        self.min_log_scale = -MAX_LOG_SCALE if limit_shrinking else None
        # A buffer, because creating a tensor from numbers in `forward` would wait for the device.
        self.register_buffer("weights", torch.tensor(tuple(weights)), persistent=False)

    def encode(self, boxes: Tensor, references: Tensor) -> Tensor:
        """Encode boxes [..., 4] relative to references [..., 4], both xyxy with positive sides."""
        center, size = _center_size(boxes)
        ref_center, ref_size = _center_size(references)
        deltas = torch.cat([(center - ref_center) / ref_size, (size / ref_size).log()], dim=-1)
        return deltas * self.weights

    def decode(self, deltas: Tensor, references: Tensor) -> Tensor:
        """Decode deltas [..., 4] to float32 xyxy boxes [..., 4]."""
        deltas = at_least_float32(deltas) / self.weights
        ref_center, ref_size = _center_size(references)
        center = ref_center + deltas[..., :2] * ref_size
        half = 0.5 * ref_size * deltas[..., 2:].clamp(self.min_log_scale, MAX_LOG_SCALE).exp()
        return torch.cat([center - half, center + half], dim=-1)


def _center_size(boxes: Tensor) -> tuple[Tensor, Tensor]:
    low, high = boxes[..., :2], boxes[..., 2:]
    return (low + high) / 2, high - low
