"""Feature extractors of the heads: they pool RoIs and turn what they see into features.

Shapes: R RoIs over all images, C channels, S x S pooled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.nn import functional as F
from yacs.config import CfgNode

from detlite.modeling.backbone import Backbone
from detlite.modeling.backbone.build import resnet_spec
from detlite.modeling.backbone.resnet import ResNetSpec, make_stage
from detlite.modeling.layers.basic import Block, conv_block, init_xavier
from detlite.modeling.layers.norm import Norm

from .pooler import Pooler, build_pooler


class Extractor(nn.Module):
    """Pools RoIs and makes features of them: [R, out_channels], or maps
    [R, out_channels, out_resolution, out_resolution].

    Attributes:
        pooler: what cuts the RoIs out of the levels.
        out_channels: of its features.
        out_resolution: their side; None: they are vectors.
    """

    pooler: Pooler
    out_channels: int
    out_resolution: int | None = None

    def forward(self, features: list[Tensor], rois: Tensor) -> Tensor:
        """Features of RoIs [R, 5] in levels [B, C, H_l, W_l], see `Pooler`."""
        return self.embed(self.pooler(features, rois))

    def embed(self, pooled: Tensor) -> Tensor:
        """Features of pooled RoIs [R, C, S, S]."""
        raise NotImplementedError


BuildExtractor = Callable[[CfgNode, Backbone], Extractor]

# What maskrcnn-benchmark calls the last stage of a ResNet; CONV_BODY says which one it is.
CONV5_NAMES = (
    "ResNetConv5ROIFeatureExtractor",
    "ResNet50Conv5ROIFeatureExtractor",
    "ResNet101Conv5ROIFeatureExtractor",
)


class FPN2MLPFeatureExtractor(Extractor):
    """Pools and applies two fully connected layers of a width, each with the optional norm."""

    def __init__(
        self, pooler: Pooler, in_channels: int, width: int, norm: Norm | None = None
    ) -> None:
        super().__init__()
        self.pooler = pooler
        self.out_channels = width
        self.fc6 = nn.Linear(in_channels * pooler.resolution**2, width, bias=norm is None)
        self.fc7 = nn.Linear(width, width, bias=norm is None)
        self.norm6 = norm(width) if norm else nn.Identity()
        self.norm7 = norm(width) if norm else nn.Identity()
        for layer in (self.fc6, self.fc7):
            init_xavier(layer)

    def embed(self, pooled: Tensor) -> Tensor:
        """[R, C, S, S] -> [R, width]."""
        x = self.fc6(pooled.flatten(1))
        x = F.relu(self.norm6(x[..., None, None]))  # norms are those of maps
        return F.relu(self.norm7(self.fc7(x.flatten(1))[..., None, None])).flatten(1)


class ConvFeatureExtractor(Extractor):
    """Pools and applies a row of 3x3 convolutions of some widths, each with the optional norm.

    `block` makes each of them, as `layers.conv_block` does.
    """

    def __init__(
        self,
        pooler: Pooler,
        in_channels: int,
        widths: Sequence[int],
        norm: Norm | None = None,
        dilation: int = 1,
        block: Block = conv_block,
    ) -> None:
        super().__init__()
        self.pooler = pooler
        self.convs = nn.Sequential()
        for width in widths:
            conv = block(in_channels, width, 3, norm=norm, relu=True, dilation=dilation)
            self.convs.append(conv)
            in_channels = width
        self.out_channels = in_channels
        self.out_resolution = pooler.resolution

    def embed(self, pooled: Tensor) -> Tensor:
        """[R, C, S, S] -> [R, widths[-1], S, S]."""
        return self.convs(pooled)


class FPNXconv1fcFeatureExtractor(ConvFeatureExtractor):
    """Pools and applies a row of 3x3 convolutions, then one fully connected layer."""

    def __init__(
        self,
        pooler: Pooler,
        in_channels: int,
        widths: Sequence[int],
        out_channels: int,
        norm: Norm | None = None,
        dilation: int = 1,
        block: Block = conv_block,
    ) -> None:
        super().__init__(pooler, in_channels, widths, norm, dilation, block)
        self.fc6 = nn.Linear(self.out_channels * pooler.resolution**2, out_channels)
        self.out_channels, self.out_resolution = out_channels, None
        init_xavier(self.fc6)

    def embed(self, pooled: Tensor) -> Tensor:
        """[R, C, S, S] -> [R, out_channels]."""
        return F.relu(self.fc6(super().embed(pooled).flatten(1)))


class ResNetConv5ROIFeatureExtractor(Extractor):
    """Pools from a C4 map and applies the last stage of a ResNet.

    With `dilation` 2 the stage keeps the size of what is pooled.
    """

    def __init__(self, pooler: Pooler, spec: ResNetSpec, dilation: int = 1) -> None:
        super().__init__()
        self.pooler = pooler
        self.res5 = make_stage(spec, 5, stride=2 // dilation, dilation=dilation)
        self.out_channels = spec.channels(5)
        self.out_resolution = -(-pooler.resolution * dilation // 2)

    def embed(self, pooled: Tensor) -> Tensor:
        """[R, C, S, S] -> [R, 2 C, S / 2, S / 2]."""
        return self.res5(pooled)


def build_conv5_extractor(
    cfg: CfgNode, backbone: Backbone, head: str
) -> ResNetConv5ROIFeatureExtractor:
    """Pools as `head` ("ROI_BOX_HEAD", ...) says and applies a stage as deep as CONV_BODY says."""
    spec = resnet_spec(cfg)
    if backbone.out_channels != spec.channels(4):
        raise ValueError(
            f"MODEL.{head}.FEATURE_EXTRACTOR applies the stage res5 to {spec.channels(4)} "
            f"channels, but {cfg.MODEL.BACKBONE.CONV_BODY} gives {backbone.out_channels}: "
            "use a C4 body, or an FPN head such as FPN2MLPFeatureExtractor"
        )
    pooler = build_pooler(cfg, head, backbone)
    return ResNetConv5ROIFeatureExtractor(pooler, spec, cfg.MODEL.RESNETS.RES5_DILATION)
