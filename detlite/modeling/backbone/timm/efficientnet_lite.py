"""EfficientNet-Lite0, 1 and 2 without timm, whose import takes seconds.

Their state dicts have the names of timm's tf_efficientnet_lite0 and so on. They are EfficientNets
(https://arxiv.org/abs/1905.11946) with ReLU6 and without squeeze-and-excite. The width of the stem
and the depth of the first and last stages are not scaled.
"""

import math
from typing import Any

from torch import Tensor, nn

from detlite.modeling.layers.conv import PaddedConv2d

_STEM = 32
# Factors of the channels and of the number of blocks.
SCALES = {f"tf_efficientnet_lite{k}": s for k, s in enumerate([(1.0, 1.0), (1.0, 1.1), (1.1, 1.2)])}
# Kernel, expansion, output channels, number of blocks and stride of the first one, of each stage.
_STAGES = (
    (3, 1, 16, 1, 1), (3, 6, 24, 2, 2), (5, 6, 40, 2, 2), (3, 6, 80, 3, 2), (5, 6, 112, 3, 1),
    (5, 6, 192, 4, 2), (3, 6, 320, 1, 1),
)  # fmt: skip
_LEVELS = (0, 1, 2, 4, 6)  # the last stage of each stride: 2, 4, 8, 16 and 32
_EPS = 1e-3


class EfficientNetLite(nn.Module):
    """The classifier without its head; implements what `TimmBackbone` needs of timm's models.

    Args:
        name: a name of `SCALES`.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        width_factor, depth_factor = SCALES[name]
        self.conv_stem = _conv(3, _STEM, 3, 2)
        self.bn1 = nn.BatchNorm2d(_STEM, _EPS)
        self.act = nn.ReLU6(inplace=True)
        self.blocks, width, widths = nn.Sequential(), _STEM, []
        for kernel, expansion, channels, count, stride in _STAGES:
            stage, channels = nn.Sequential(), 8 * round(channels * width_factor / 8)
            if count > 1:  # the first and the last stage always have one block
                count = math.ceil(count * depth_factor)
            for k in range(count):
                stage.append(_Block(width, channels, kernel, stride if k == 0 else 1, expansion))
                width = channels
            self.blocks.append(stage)
            widths.append(width)
        self.feature_info = [
            {"reduction": 2 ** (k + 1), "num_chs": widths[stage], "module": f"blocks.{stage}"}
            for k, stage in enumerate(_LEVELS)
        ]

    def prune_intermediate_layers(self, indices: list[int], prune_norm: bool) -> list[int]:
        """Remove the stages after the last of `feature_info[indices]`; return the used stages."""
        stages = [_LEVELS[k] for k in indices]
        self.blocks = self.blocks[: max(stages) + 1]
        return stages

    def forward_intermediates(self, x: Tensor, indices: list[int], **_: Any) -> list[Tensor]:
        """Compute the maps [B, C, H / stride, W / stride] of the stages `indices`.

        Args:
            x: images [B, 3, H, W]; H and W are multiples of the coarsest stride.
        """
        x = self.act(self.bn1(self.conv_stem(x)))
        maps = []
        for number, stage in enumerate(self.blocks):
            x = stage(x)
            if number in indices:
                maps.append(x)
        return maps

    def layers(self) -> list[list[nn.Parameter]]:
        """Return the parameters of the stem and of each stage, as timm groups them."""
        stem = [*self.conv_stem.parameters(), *self.bn1.parameters()]
        return [stem, *(list(stage.parameters()) for stage in self.blocks)]


class _Block(nn.Sequential):
    """Inverted residual; without an expansion, a separable convolution."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = inputs * expansion
        convs = [("conv_dw", _conv(width, width, kernel, stride, groups=width))]
        if expansion > 1:
            convs.insert(0, ("conv_pw", _conv(inputs, width)))
        convs.append(("conv_pwl" if expansion > 1 else "conv_pw", _conv(width, outputs)))
        for number, (name, conv) in enumerate(convs, 1):
            self.add_module(name, conv)
            self.add_module(f"bn{number}", nn.BatchNorm2d(conv.out_channels, _EPS))
            if number < len(convs):
                self.add_module(f"act{number}", nn.ReLU6(inplace=True))
        self.has_shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out + x if self.has_shortcut else out


def _conv(
    inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1
) -> nn.Conv2d:
    """Create a convolution with TensorFlow's padding for maps with sides divisible by `stride`."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)
    nn.init.normal_(conv.weight, std=math.sqrt(2 * groups / (kernel**2 * outputs)))
    before, after = (kernel - stride) // 2, (kernel - stride + 1) // 2
    if before < after:
        return PaddedConv2d(conv, (before, after, before, after))
    conv.padding = (before, before)
    return conv
