"""Normalisation layers by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from yacs.config import CfgNode

Norm = Callable[[int], nn.Module]


class FrozenBatchNorm2d(nn.Module):
    """Batch norm whose statistics and affine parameters are fixed buffers.

    y = (x - running_mean) / sqrt(running_var + eps) * weight + bias, per channel.
    """

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.register_buffer("weight", torch.ones(channels))
        self.register_buffer("bias", torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> the same shape."""
        if x.dtype == self.weight.dtype:
            # Rounded as torchvision rounds it; in training faster than torch's batch norm.
            scale = self.weight * (self.running_var + self.eps).rsqrt()
            shift = self.bias - self.running_mean * scale
            return (x * scale[:, None, None]).add_(shift[:, None, None])
        # Half types stay what they are, with sums in float32. Not F.batch_norm, which in torch 2.11
        # refuses the epsilon 0 of torchvision's old weights.
        return torch.batch_norm(
            x,
            self.weight,
            self.bias,
            self.running_mean,
            self.running_var,
            training=False,
            momentum=0.0,
            eps=self.eps,
            cudnn_enabled=torch.backends.cudnn.enabled,
        )

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, eps={self.eps}"


def freeze_batch_norm(module: nn.Module) -> None:
    """Replaces every batch norm inside `module` by a frozen one."""
    for name, child in module.named_children():
        if isinstance(child, (nn.BatchNorm2d, nn.SyncBatchNorm)):
            setattr(module, name, FrozenBatchNorm2d(child.num_features, child.eps))
        else:
            freeze_batch_norm(child)


def group_norm(channels: int, num_groups: int, dim_per_group: int, eps: float) -> nn.GroupNorm:
    """Group norm by number of groups, or by channels per group where `num_groups` is -1.

    Raises:
        ValueError: channels that do not divide, or both ways given at once.
    """
    if (num_groups > 0) == (dim_per_group > 0):
        raise ValueError(
            "set one of MODEL.GROUP_NORM.NUM_GROUPS and MODEL.GROUP_NORM.DIM_PER_GP, and the "
            f"other to -1 (they are {num_groups} and {dim_per_group})"
        )
    groups = num_groups if num_groups > 0 else channels // dim_per_group
    if groups < 1 or channels % groups:
        raise ValueError(f"group norm cannot split {channels} channels into {groups} groups")
    return nn.GroupNorm(groups, channels, eps=eps)


def optional_norm(cfg: CfgNode, part: str) -> Norm | None:
    """The norm that NORM, or USE_GN, of a part asks for; None for neither.

    Args:
        cfg: the config.
        part: FPN, ROI_BOX_HEAD or ROI_MASK_HEAD.
    """
    node = cfg.MODEL[part]
    name = "GN" if node.USE_GN else node.NORM
    return build_norm(cfg, name) if name else None


def build_norm(cfg: CfgNode, name: str) -> Norm:
    """The constructor (channels -> layer) of the norm called FrozenBN, BN, SyncBN or GN."""
    if name == "GN":
        gn = cfg.MODEL.GROUP_NORM
        return partial(
            group_norm, num_groups=gn.NUM_GROUPS, dim_per_group=gn.DIM_PER_GP, eps=gn.EPSILON
        )
    kinds: dict[str, Callable[..., nn.Module]] = {
        "FrozenBN": FrozenBatchNorm2d,
        "BN": nn.BatchNorm2d,
        "SyncBN": nn.SyncBatchNorm,
    }
    return partial(kinds[name], eps=cfg.MODEL.RESNETS.BN_EPSILON)
