"""The simple feature pyramid of ViTDet (Li et al., https://arxiv.org/abs/2203.16527)."""

from torch import Tensor, nn

from detlite.modeling.layers.conv_block import conv_block
from detlite.modeling.layers.norm import Norm

from .fpn import subsample


class SimpleFeaturePyramid(nn.Module):
    """Computes levels of strides 4, 8, 16, 32 and 64 from one map of stride 16.

    The norm is applied between the deconvolutions of the finest level too.
    """

    def __init__(self, in_channels: int, out_channels: int, norm: Norm, relu: bool = False) -> None:
        super().__init__()
        half, quarter = in_channels // 2, in_channels // 4

        def upsample(before: int, after: int) -> nn.Module:
            return nn.ConvTranspose2d(before, after, 2, stride=2)

        finest = nn.Sequential(
            upsample(in_channels, half), norm(half), nn.GELU(), upsample(half, quarter)
        )
        self.scale = nn.ModuleList(
            [finest, upsample(in_channels, half), nn.Identity(), nn.MaxPool2d(2, stride=2)]
        )
        self.lateral = nn.ModuleList(
            conv_block(channels, out_channels, 1, norm=norm, relu=relu)
            for channels in (quarter, half, in_channels, in_channels)
        )
        self.output = nn.ModuleList(
            conv_block(out_channels, out_channels, 3, norm=norm, relu=relu) for _ in self.scale
        )

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        """Compute five levels from one map [B, in_channels, H, W] with even H and W.

        The levels [B, out_channels, h, w] have 4, 2, 1, 1/2 and 1/4 times its height and width. The
        last one is subsampled, for the largest anchors.
        """
        (x,) = maps
        parts = zip(self.scale, self.lateral, self.output, strict=True)
        levels = [output(lateral(scale(x))) for scale, lateral, output in parts]
        return [*levels, subsample(levels[-1])]
