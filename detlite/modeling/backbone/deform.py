"""Deformable convolution (Dai et al., https://arxiv.org/abs/1703.06211), and modulated, version 2
(Zhu et al., https://arxiv.org/abs/1811.11168)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchvision.ops import deform_conv2d


class DeformConv3x3(nn.Module):
    """A 3x3 convolution whose nine taps lie where a second convolution says.

    It starts as the plain convolution: all offsets are 0; if `modulated`, all taps weigh one half.

    Args:
        in_channels, out_channels, stride, dilation, groups: of the convolution, which has no bias.
        modulated: the second convolution also says how much each tap counts (0 to 1).
        offset_groups: so many parts of the input channels have offsets of their own.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
        *,
        modulated: bool = False,
        offset_groups: int = 1,
    ) -> None:
        super().__init__()
        if in_channels % offset_groups:
            raise ValueError(
                f"MODEL.RESNETS.DEFORMABLE_GROUPS {offset_groups} does not divide the "
                f"{in_channels} channels of a deformable convolution"
            )
        self.taps = 9 * offset_groups
        self.modulated = modulated
        self.conv = nn.Conv2d(
            in_channels, out_channels, 3, stride, dilation, dilation, groups, bias=False
        )
        self.offset = nn.Conv2d(
            in_channels, self.taps * (3 if modulated else 2), 3, stride, dilation, dilation
        )
        self.reset_offsets()

    def reset_offsets(self) -> None:
        """Puts all taps where those of a plain convolution are."""
        for parameter in self.offset.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, out_channels, H / stride, W / stride]."""
        predicted, conv = self.offset(x), self.conv
        dtype = torch.promote_types(predicted.dtype, torch.float32)  # offsets do not fit half
        # For each tap (dy, dx) in pixels; then the weights of the taps.
        offsets = predicted[:, : 2 * self.taps].to(dtype)
        weights = predicted[:, 2 * self.taps :].to(dtype)
        with torch.autocast(x.device.type, enabled=False):
            out = deform_conv2d(
                x.to(dtype),
                offsets,
                conv.weight.to(dtype),
                stride=conv.stride,
                padding=conv.padding,
                dilation=conv.dilation,
                mask=weights.sigmoid() if self.modulated else None,
            )
        return out.to(predicted.dtype)
