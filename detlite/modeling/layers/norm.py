"""Normalization layers, and their construction from the config."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from yacs.config import CfgNode

from detlite.conventions import convention_of

# Constructor of a norm from its number of channels.
Norm = Callable[[int], nn.Module]
BATCH_NORMS = (nn.BatchNorm2d, nn.SyncBatchNorm)
_CACHE_SIZE = 2**18  # numbers that stay in the cache until they are read again
_EXACT_PIXELS = 2**12  # pixels whose sum in float32, one by one, is exact to a millionth


class FrozenBatchNorm2d(nn.Module):
    """Batch norm whose statistics and affine parameters are fixed buffers.

    y = (x - running_mean) / sqrt(running_var + eps) * weight + bias, per channel.

    Attributes:
        folded: the convolution before it computes y, see `optimize_for_training`.
    """

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor
    folded = False

    def __init__(self, num_features: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        for name, value in (("weight", 1), ("bias", 0), ("running_mean", 0), ("running_var", 1)):
            self.register_buffer(name, torch.full((num_features,), float(value)))

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *args: Any) -> None:
        state.pop(f"{prefix}num_batches_tracked", None)  # of a trained batch norm
        super()._load_from_state_dict(state, prefix, *args)

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, eps={self.eps}"

    def forward(self, x: Tensor) -> Tensor:
        """Normalize [B, C, H, W], keeping its type."""
        if self.folded:
            return x
        if x.dtype == self.weight.dtype and x.is_contiguous():
            # Bit-exact with torchvision: one pass would round once where this rounds twice.
            scale, shift = self.scale_and_shift()
            return (x * scale[:, None, None]).add_(shift[:, None, None])
        normalize = _FrozenNorm.apply if torch.is_grad_enabled() and x.requires_grad else _normalize
        return normalize(x, self.weight, self.bias, self.running_mean, self.running_var, self.eps)

    def scale_and_shift(self) -> tuple[Tensor, Tensor]:
        """Return scale [C] and shift [C] with y = x * scale + shift."""
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        return scale, self.bias - self.running_mean * scale


class FrozenBatchNormAct2d(FrozenBatchNorm2d):
    """Frozen batch norm with dropout and an activation, for timm's models."""

    def __init__(self, num_features: int, eps: float, drop: nn.Module, act: nn.Module) -> None:
        super().__init__(num_features, eps)
        self.drop, self.act = drop, act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(x)))


def to_frozen_norm(norm: nn.BatchNorm2d | nn.SyncBatchNorm) -> FrozenBatchNorm2d:
    """Create a frozen norm with the statistics, parameters and activation of a batch norm."""
    if hasattr(norm, "act"):
        after = norm.get_submodule("drop"), norm.get_submodule("act")
        result: FrozenBatchNorm2d = FrozenBatchNormAct2d(norm.num_features, norm.eps, *after)
    else:
        result = FrozenBatchNorm2d(norm.num_features, norm.eps)
    result.load_state_dict({**result.state_dict(), **norm.state_dict()})
    return result


def freeze_batch_norm(
    net: nn.Module, modules: Iterable[tuple[str, nn.Module]] | None = None
) -> None:
    """Replace every batch norm among `modules` (default: all inside `net`) with a frozen one."""
    for path, module in list(modules or net.named_modules()):
        if isinstance(module, BATCH_NORMS):
            net.set_submodule(path, to_frozen_norm(module))


def uses_batch_statistics(module: nn.Module) -> bool:
    """Return True if a norm inside `module` normalizes by its batch."""
    return any(isinstance(child, BATCH_NORMS) and child.training for child in module.modules())


def _normalize(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, eps: float
) -> Tensor:
    """Normalize by fixed statistics in one pass, half types with sums in float32."""
    # Not F.batch_norm, which in torch 2.11 refuses the epsilon 0 of torchvision's old weights.
    cudnn = torch.backends.cudnn.enabled
    return torch.batch_norm(x, weight, bias, mean, variance, False, 0.0, eps, cudnn)


class _FrozenNorm(torch.autograd.Function):
    """`_normalize` that saves no map for backward; torch's own saves its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *fixed: Any) -> Tensor:
        weight, _, _, variance, ctx.eps = fixed
        ctx.save_for_backward(weight, variance)
        return _normalize(x, *fixed)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        weight, variance = ctx.saved_tensors
        zero = torch.zeros_like(weight)
        gradient = _normalize(gradients[0], weight, zero, zero, variance, ctx.eps)
        return gradient, None, None, None, None, None


class LayerNorm2d(nn.LayerNorm):
    """Layer norm over the channels of each pixel of maps [B, C, H, W]."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class LevelBatchNorm(nn.ModuleList):
    """Batch norm of a layer that pyramid levels share: statistics per level, one scale and shift.

    Levels have different means. With shared running statistics, the level that came last would
    dominate them (Wu and Johnson, Rethinking "Batch" in BatchNorm,
    https://arxiv.org/abs/2105.07576, section 5.2). Its state dict has the names of detectron2's
    CycleBatchNormList.
    """

    def __init__(
        self, channels: int, levels: int, kind: type[nn.BatchNorm2d | nn.SyncBatchNorm]
    ) -> None:
        super().__init__(kind(channels, affine=False) for _ in range(levels))
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor, level: int) -> Tensor:
        """Normalize a level [B, C, H_l, W_l]."""
        norm = self[level]
        x = norm(x)
        # Fusion for inference moves scale and shift into each norm.
        if isinstance(norm, nn.modules.batchnorm._BatchNorm) and norm.affine:
            return x
        return x * self.weight[:, None, None] + self.bias[:, None, None]


class GroupNorm(nn.GroupNorm):
    """Group norm that is exact and fast on channels-last maps on a CPU.

    Wu & He, https://arxiv.org/abs/1803.08494.

    torch adds up the pixels of such maps one by one in float32. On 400 x 608 pixels the fourth
    digit is lost, which moves boxes by some hundredths of a pixel. Its backward pass is slow in
    bfloat16, but not in float32.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalize [B, C, H, W]."""
        if (
            torch.compiler.is_compiling()  # a graph must not depend on the size of a map
            or x.device.type != "cpu"
            or not x.is_contiguous(memory_format=torch.channels_last)
        ):
            return super().forward(x)
        if self.training and torch.is_grad_enabled():  # torch's sums are exact enough for it
            dtype = torch.promote_types(x.dtype, torch.float32)
            parameters = self.weight.to(dtype), self.bias.to(dtype)
            return F.group_norm(x.to(dtype), self.num_groups, *parameters, self.eps).to(x.dtype)
        if x.dtype != torch.float32 or x.shape[2] * x.shape[3] <= _EXACT_PIXELS:
            return super().forward(x)
        values = x.permute(0, 2, 3, 1).flatten(1, 2)  # [B, H W, C]
        mean = self._group_means(values.mean(dim=1))
        rows = max(1, _CACHE_SIZE // (values.shape[0] * values.shape[2]))
        squares = [(part - mean).square_().sum(dim=1) for part in values.split(rows, dim=1)]
        variance = self._group_means(torch.stack(squares).sum(dim=0) / values.shape[1])
        scale = (variance + self.eps).rsqrt() * self.weight
        normalized = torch.addcmul(self.bias - mean * scale, values, scale)
        return normalized.unflatten(1, x.shape[2:]).permute(0, 3, 1, 2)

    def _group_means(self, means: Tensor) -> Tensor:
        """Average means [B, C] over groups, and repeat them for each channel: [B, 1, C]."""
        groups = means.unflatten(1, (self.num_groups, -1)).mean(dim=2, keepdim=True)
        return groups.expand(-1, -1, means.shape[1] // self.num_groups).flatten(1)[:, None]


def group_norm(channels: int, num_groups: int, dim_per_group: int, eps: float) -> nn.GroupNorm:
    """Create a group norm by the number of groups, or by channels per group if that is -1."""
    groups = num_groups if num_groups > 0 else channels // max(dim_per_group, 1)
    if (num_groups > 0) == (dim_per_group > 0) or groups < 1 or channels % groups:
        raise ValueError(
            f"group norm cannot split {channels} channels: MODEL.GROUP_NORM.NUM_GROUPS is "
            f"{num_groups} and DIM_PER_GP is {dim_per_group}. Set one to a divisor of all widths "
            "and the other to -1"
        )
    return GroupNorm(groups, channels, eps=eps)


def build_optional_norm(cfg: CfgNode, section: str) -> Norm | None:
    """Build the norm of MODEL.<section>.NORM ("FPN", "ROI_BOX_HEAD", ...); None without one."""
    name = cfg.MODEL[section].get("NORM")
    return build_norm(cfg, name) if name else None


def build_norm(cfg: CfgNode, name: str) -> Norm:
    """Build the norm of a name: BN, SyncBN, FrozenBN, GN or LN.

    LN normalizes over the channels of each pixel, with detectron2's epsilon.
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
