"""Normalisation layers by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.convnext import LayerNorm2d
from torchvision.ops import FrozenBatchNorm2d as TorchvisionFrozenBatchNorm2d
from yacs.config import CfgNode

from detlite.conventions import convention_of

from .group_norm import GroupNorm

Norm = Callable[[int], nn.Module]


class FrozenBatchNorm2d(TorchvisionFrozenBatchNorm2d):
    """Batch norm whose statistics and affine parameters are fixed buffers.

    y = (x - running_mean) / sqrt(running_var + eps) * weight + bias, per channel.

    Attributes:
        applied: the convolution before it does that as well, see `backbone.folding`.
    """

    applied = False

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> the same shape and type."""
        return x if self.applied else self.affine(x)

    def scale_and_shift(self) -> tuple[Tensor, Tensor]:
        """[C] and [C], with which y = x * scale + shift."""
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        return scale, self.bias - self.running_mean * scale

    def affine(self, x: Tensor) -> Tensor:
        """y of x, also where it was applied before."""
        if x.dtype == self.weight.dtype and x.is_contiguous():
            # As torchvision, to the last bit: one pass rounds once where this rounds twice.
            scale, shift = self.scale_and_shift()
            return (x * scale[:, None, None]).add_(shift[:, None, None])
        if torch.is_grad_enabled() and x.requires_grad:
            return _Affine.apply(
                x, self.weight, self.bias, self.running_mean, self.running_var, self.eps
            )
        return _affine(x, self.weight, self.bias, self.running_mean, self.running_var, self.eps)


class FrozenBatchNormAct2d(FrozenBatchNorm2d):
    """A frozen norm that timm's models have together with what follows it.

    Args:
        drop, act: that, in this order.
    """

    def __init__(self, num_features: int, eps: float, drop: nn.Module, act: nn.Module) -> None:
        super().__init__(num_features, eps)
        self.drop = drop
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(x)))


def frozen(norm: nn.BatchNorm2d | nn.SyncBatchNorm) -> FrozenBatchNorm2d:
    """A frozen norm with the numbers, and the activation, of a batch norm."""
    if hasattr(norm, "act"):
        after = norm.get_submodule("drop"), norm.get_submodule("act")
        result: FrozenBatchNorm2d = FrozenBatchNormAct2d(norm.num_features, norm.eps, *after)
    else:
        result = FrozenBatchNorm2d(norm.num_features, norm.eps)
    result.load_state_dict({**result.state_dict(), **norm.state_dict()})
    return result


def _affine(
    x: Tensor, weight: Tensor, bias: Tensor | None, mean: Tensor, variance: Tensor, eps: float
) -> Tensor:
    """Batch norm by given statistics, in one pass; half types stay so, with sums in float32."""
    # Not F.batch_norm, which in torch 2.11 refuses the epsilon 0 of torchvision's old weights.
    cudnn = torch.backends.cudnn.enabled
    return torch.batch_norm(x, weight, bias, mean, variance, False, 0.0, eps, cudnn)


class _Affine(torch.autograd.Function):
    """`_affine`, which keeps nothing of the size of a map: torch's own keeps its input."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor,
        eps: float,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(weight, variance)
        ctx.eps = eps
        return _affine(x, weight, bias, mean, variance, eps)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        weight, variance = ctx.saved_tensors
        zero = torch.zeros_like(weight)
        gradient = _affine(gradients[0], weight, zero, zero, variance, ctx.eps)
        return gradient, None, None, None, None, None


class LevelBatchNorm(nn.ModuleList):
    """Batch norm for a layer that the levels of a pyramid share: statistics for each of them, one
    scale and shift for all.

    As detectron2's CycleBatchNormList, by whose names its entries are called: levels have means of
    their own, and whichever came last would otherwise say what all are normalised by (Wu and
    Johnson, Rethinking "Batch" in BatchNorm, https://arxiv.org/abs/2105.07576, section 5.2).

    Args:
        channels: of a map.
        levels: how many share the layer.
        kind: nn.BatchNorm2d or nn.SyncBatchNorm.
    """

    def __init__(
        self, channels: int, levels: int, kind: type[nn.BatchNorm2d | nn.SyncBatchNorm]
    ) -> None:
        super().__init__(kind(channels, affine=False) for _ in range(levels))
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor, level: int) -> Tensor:
        """[B, C, H_l, W_l] of a level -> the same shape."""
        norm = self[level]
        x = norm(x)
        # Where it is to be folded into a convolution, each norm has them itself.
        if isinstance(norm, nn.modules.batchnorm._BatchNorm) and norm.affine:
            return x
        return x * self.weight[:, None, None] + self.bias[:, None, None]


def freeze_batch_norm(module: nn.Module) -> None:
    """Replaces every batch norm inside `module` by a frozen one."""
    for name, child in module.named_children():
        if isinstance(child, (nn.BatchNorm2d, nn.SyncBatchNorm)):
            setattr(module, name, frozen(child))
        else:
            freeze_batch_norm(child)


def takes_batch_statistics(module: nn.Module) -> bool:
    """Whether a norm inside `module` normalises by its batch: what is in it changes the digits."""
    kinds = (nn.BatchNorm2d, nn.SyncBatchNorm)
    return any(isinstance(child, kinds) and child.training for child in module.modules())


def group_norm(channels: int, num_groups: int, dim_per_group: int, eps: float) -> nn.GroupNorm:
    """Group norm by number of groups, or by channels per group where `num_groups` is -1."""
    if (num_groups > 0) == (dim_per_group > 0):
        raise ValueError(
            "set one of MODEL.GROUP_NORM.NUM_GROUPS and MODEL.GROUP_NORM.DIM_PER_GP, and the "
            f"other to -1 (they are {num_groups} and {dim_per_group})"
        )
    groups = num_groups if num_groups > 0 else channels // dim_per_group
    if groups < 1 or channels % groups:
        raise ValueError(
            f"group norm cannot split {channels} channels into {groups} groups: set "
            "MODEL.GROUP_NORM.NUM_GROUPS to a divisor of all widths, or "
            "MODEL.GROUP_NORM.DIM_PER_GP and the other to -1"
        )
    return GroupNorm(groups, channels, eps=eps)


def optional_norm(cfg: CfgNode, part: str) -> Norm | None:
    """The norm that NORM of a part ("FPN", "ROI_BOX_HEAD", ...) asks for, or None."""
    name = cfg.MODEL[part].NORM
    return build_norm(cfg, name) if name else None


def build_norm(cfg: CfgNode, name: str) -> Norm:
    """The constructor (channels -> layer) of the norm of a name, one of the schema's NORMS.

    LN normalises over the channels at each place of a map, by detectron2's epsilon.
    """
    if name == "GN":
        gn = cfg.MODEL.GROUP_NORM
        return partial(
            group_norm, num_groups=gn.NUM_GROUPS, dim_per_group=gn.DIM_PER_GP, eps=gn.EPSILON
        )
    if name == "FrozenBN":
        return partial(FrozenBatchNorm2d, eps=convention_of(cfg).frozen_norm_eps)
    if name == "LN":
        return partial(LayerNorm2d, eps=1e-6)
    return {"BN": nn.BatchNorm2d, "SyncBN": nn.SyncBatchNorm}[name]
