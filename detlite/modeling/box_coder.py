"""Boxes as offsets from reference boxes (R-CNN, https://arxiv.org/abs/1311.2524, appendix C)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .layers import at_least_float32

# Largest dw, dh that is decoded: a box grows at most 1000 / 16 times.
MAX_LOG_SCALE = math.log(1000.0 / 16)


class BoxCoder(nn.Module):
    """Encodes boxes relative to references and back.

    (dx, dy) are the shift of the centre in units of the reference's sides, (dw, dh) the logarithm
    of the ratio of the sides; each is multiplied by its weight.
    """

    weights: Tensor

    def __init__(self, weights: Sequence[float]) -> None:
        super().__init__()
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
        half = 0.5 * ref_size * deltas[..., 2:].clamp(max=MAX_LOG_SCALE).exp()
        return torch.cat([centre - half, centre + half], dim=-1)


def _centre_size(boxes: Tensor) -> tuple[Tensor, Tensor]:
    low, high = boxes[..., :2], boxes[..., 2:]
    return (low + high) / 2, high - low
