"""Deformable convolution (Dai et al., https://arxiv.org/abs/1703.06211) and its modulated version 2
(Zhu et al., https://arxiv.org/abs/1811.11168)."""

from typing import Any

import torch
from torch import Tensor, nn

from detlite.modeling.precision import at_least_float32


class DeformConv3x3(nn.Module):
    """3x3 convolution whose nine taps are moved by offsets that a second convolution predicts.

    All offsets are initially 0, as in a plain convolution; if `modulated`, all weights are 0.5.

    Args:
        conv: without a bias.
        modulated: the second convolution also predicts a weight (0 to 1) for each tap.
        offset_groups: the number of groups of input channels that have different offsets.
    """

    def __init__(self, conv: nn.Conv2d, modulated: bool = False, offset_groups: int = 1) -> None:
        super().__init__()
        if conv.in_channels % offset_groups:
            raise ValueError(
                f"MODEL.RESNETS.DEFORMABLE_GROUPS {offset_groups} does not divide the "
                f"{conv.in_channels} channels of a deformable convolution"
            )
        self.taps, self.modulated = 9 * offset_groups, modulated
        self.conv = conv
        predictions = self.taps * (3 if modulated else 2)
        options: Any = {name: getattr(conv, name) for name in ("stride", "padding", "dilation")}
        self.offset = nn.Conv2d(conv.in_channels, predictions, 3, **options)
        self.reset_offsets()

    def reset_offsets(self) -> None:
        """Set all offsets to 0."""
        for parameter in self.offset.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        """Compute [B, out_channels, H / stride, W / stride] from [B, C, H, W]."""
        from torchvision.ops import deform_conv2d

        predicted, conv = self.offset(x), self.conv
        # (dy, dx) of each tap in pixels, then the weights of the taps.
        offsets, weights = at_least_float32(predicted).tensor_split([2 * self.taps], dim=1)
        mask, dtype = weights.sigmoid() if self.modulated else None, offsets.dtype
        options = conv.stride, conv.padding, conv.dilation
        with torch.autocast(x.device.type, enabled=False):
            weight = conv.weight.to(dtype)
            out = deform_conv2d(x.to(dtype), offsets, weight, None, *options, mask=mask)
        return out.to(predicted.dtype)
