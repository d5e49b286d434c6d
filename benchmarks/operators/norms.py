"""Group norm of a map in training."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from detlite.modeling.layers.group_norm import GroupNorm

from .case import Case


def norm_cases(device: str) -> Iterator[Case]:
    """Forward and backward of the first stage of a ResNet, four images of 512 x 640 in bfloat16."""
    x = torch.randn(4, 64, 128, 160, device=device, dtype=torch.bfloat16)
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    gradient = torch.randn_like(x)

    def step(norm: nn.GroupNorm) -> tuple[Tensor, ...]:
        return torch.autograd.grad(norm(x), (x, norm.weight, norm.bias), gradient)

    ours, theirs = (kind(32, 64).to(device) for kind in (GroupNorm, nn.GroupNorm))
    yield Case(
        "group_norm_64_cl_bf16_train",
        lambda: step(ours),
        lambda: step(theirs),
        traffic=8 * x.nbytes,  # x twice and y; back x and the gradient twice, and the result
        dtype="bfloat16",
    )
