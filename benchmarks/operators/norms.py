"""Cases of normalization layers in training."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from detlite.modeling.layers.group_norm import GroupNorm

from .case import Case


def norm_cases(device: str) -> Iterator[Case]:
    """Yield a case of group norm in bfloat16, forward and backward.

    The feature map is from a ResNet's first stage for four images of 512 x 640.
    """
    x = torch.randn(4, 64, 128, 160, device=device, dtype=torch.bfloat16)
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    gradient = torch.randn_like(x)

    def step(norm: nn.GroupNorm) -> tuple[Tensor, ...]:
        return torch.autograd.grad(norm(x), (x, norm.weight, norm.bias), gradient)

    norm, torch_norm = (kind(32, 64).to(device) for kind in (GroupNorm, nn.GroupNorm))
    yield Case(
        "group_norm_64_cl_bf16_train",
        lambda: step(norm),
        lambda: step(torch_norm),
        traffic=8 * x.nbytes,  # forward: x twice, y; backward: x and dy twice, dx
        dtype="bfloat16",
    )
