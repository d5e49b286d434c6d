"""Fused layers for inference, and the splitting of layers that fusion needs."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_weights

from detlite.modeling.layers.conv import PaddedConv2d, share_parameters
from detlite.modeling.layers.norm import FrozenBatchNorm2d, FrozenBatchNormAct2d, LevelBatchNorm

NORMS = (nn.BatchNorm2d, nn.SyncBatchNorm, FrozenBatchNorm2d)
# oneDNN's name and arguments, and torch's function, of the activations in traced code.
_RELU = ("relu", (), F.relu)
ACTIVATIONS: dict[Any, tuple[str, tuple[float, ...], Callable[[Tensor], Tensor]]] = {
    None: ("none", (), lambda x: x),
    nn.ReLU: _RELU,
    F.relu: _RELU,
    torch.relu: _RELU,
    nn.ReLU6: ("hardtanh", (0.0, 6.0), F.relu6),
    nn.SiLU: ("swish", (), F.silu),
    nn.Hardswish: ("hardswish", (), F.hardswish),
}


class FusedConv2d(nn.Module):
    """A convolution with a folded norm, an optional addition and an optional activation.

    Args:
        conv, norm: layers in evaluation mode.
        activation: a key of ACTIVATIONS.
        dtype: of weights and maps.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(
        self, conv: nn.Conv2d, norm: nn.Module | None, activation: Any, dtype: torch.dtype
    ) -> None:
        super().__init__()
        weight, bias = _fold(conv, norm, dtype)
        self.register_buffer("weight", weight.to(memory_format=torch.channels_last))
        self.register_buffer("bias", bias)
        assert not isinstance(conv.padding, str)
        self.padding, self.stride, self.dilation = conv.padding, conv.stride, conv.dilation
        self.groups = conv.groups
        self.activation = activation

    def forward(self, x: Tensor, other: Tensor | None = None, overwrite: bool = False) -> Tensor:
        """Compute activation(conv(x) + other); `overwrite`: it may be stored in `other`."""
        conv = (self.weight, self.bias, self.padding, self.stride, self.dilation, self.groups)
        name, scalars, function = ACTIVATIONS[self.activation]
        # torch.compile fuses plain operations itself.
        if torch.compiler.is_compiling() or not self._runs_in_onednn(x, other):
            geometry = (self.stride, self.padding, self.dilation, self.groups)
            out = F.conv2d(x, self.weight, self.bias, *geometry)
            return function(out if other is None else out + other)
        onednn = torch.ops.mkldnn
        if other is None:
            return onednn._convolution_pointwise(x, *conv, name, scalars, None)
        addition = ("add", 1.0, None if name == "none" else name, scalars, None)
        if overwrite:
            return onednn._convolution_pointwise_.binary(other, x, *conv, *addition)
        return onednn._convolution_pointwise.binary(x, other, *conv, *addition)

    def _runs_in_onednn(self, x: Tensor, other: Tensor | None) -> bool:
        same_shape = other is None or other.shape == self._output_shape(x)
        return bool(x.device.type == "cpu" and x.numel() and same_shape and onednn_fuses(x.dtype))

    def _output_shape(self, x: Tensor) -> tuple[int, ...]:
        sides = [
            (x.shape[2 + i] + 2 * self.padding[i] - self.dilation[i] * (kernel - 1) - 1)
            // self.stride[i]
            + 1
            for i, kernel in enumerate(self.weight.shape[2:])
        ]
        return (x.shape[0], self.weight.shape[0], *sides)


def split_layers(module: nn.Module) -> None:
    """Split norms with an activation, and convolutions with margins, into two layers each.

    The norms of a `LevelBatchNorm` receive its shared scale and shift.
    """
    for name, child in module.named_children():
        if isinstance(child, FrozenBatchNormAct2d):
            frozen = FrozenBatchNorm2d(len(child.weight), child.eps)
            frozen.load_state_dict(child.state_dict())
            setattr(module, name, nn.Sequential(frozen, child.act))
        elif isinstance(child, nn.BatchNorm2d) and hasattr(child, "act"):
            norm = nn.BatchNorm2d(child.num_features, child.eps, affine=child.affine)
            norm.load_state_dict(child.state_dict())
            setattr(module, name, nn.Sequential(norm.eval(), child.get_submodule("act")))
        elif isinstance(child, LevelBatchNorm):
            for level in child.children():
                assert isinstance(level, nn.modules.batchnorm._BatchNorm)
                level.affine, level.weight, level.bias = True, child.weight, child.bias
        elif isinstance(child, PaddedConv2d):
            padding = nn.ZeroPad2d(child.margins)
            setattr(module, name, nn.Sequential(padding, share_parameters(child)))
        else:
            split_layers(child)


@cache
def onednn_fuses(dtype: torch.dtype) -> bool:
    """Return True if this torch and processor run fused convolutions in `dtype`."""
    x = torch.ones(1, 16, 2, 2, dtype=dtype).contiguous(memory_format=torch.channels_last)
    weight = torch.ones(16, 16, 1, 1, dtype=dtype).contiguous(memory_format=torch.channels_last)
    conv = (weight, None, (0, 0), (1, 1), (1, 1), 1)
    addition = ("add", 1.0, "relu", (), None)
    try:
        out = torch.ops.mkldnn._convolution_pointwise(x, *conv, "relu", (), None)
        out = torch.ops.mkldnn._convolution_pointwise_.binary(out, x, *conv, *addition)
    except (RuntimeError, AttributeError):  # another build of torch, or an older processor
        return False
    return bool((out == 32).all())


def _fold(
    conv: nn.Conv2d, norm: nn.Module | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    weight: Any = conv.weight
    bias: Any = conv.bias
    if norm is not None:
        assert isinstance(norm, NORMS)
        layers = (weight, bias, norm.running_mean, norm.running_var, norm.weight, norm.bias)
        # MPS has no float64.
        values: list[Any] = [None if x is None else x.detach().cpu().double() for x in layers]
        weight, bias, mean, variance, scale, shift = values
        weight, bias = fuse_conv_bn_weights(weight, bias, mean, variance, norm.eps, scale, shift)
    device = conv.weight.device
    weight = weight.detach().to(dtype).to(device)
    return weight, None if bias is None else bias.detach().to(dtype).to(device)
