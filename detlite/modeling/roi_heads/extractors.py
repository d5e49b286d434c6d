"""Feature extractors of the RoI heads: they pool RoIs and compute features of them.

Shapes: R RoIs over all images, C channels, S x S pooled.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from yacs.config import CfgNode

from detlite.modeling.backbone import Backbone
from detlite.modeling.backbone.resnet import ResNetOptions, build_resnet_options, make_stage
from detlite.modeling.layers.conv_block import conv_block, init_xavier
from detlite.modeling.layers.norm import Norm, build_optional_norm
from detlite.registry import Registry

from .pooler import Pooler, build_pooler


class Extractor(nn.Module):
    """Pools RoIs and computes features: vectors [R, out_channels], or maps
    [R, out_channels, out_resolution, out_resolution].

    `out_resolution` is None for vectors.
    """

    pooler: Pooler
    out_channels: int
    out_resolution: int | None = None

    def forward(self, features: list[Tensor], rois: Tensor) -> Tensor:
        """Compute the features of RoIs [R, 5] in levels [B, C, H_l, W_l], see `Pooler`."""
        return self.embed(self.pooler(features, rois))

    def embed(self, pooled: Tensor) -> Tensor:
        """Compute the features of pooled RoIs [R, C, S, S]."""
        raise NotImplementedError


BuildExtractor = Callable[[CfgNode, Backbone], Extractor]
_FBNET = {"FBNet": "detlite.modeling.backbone.fbnet"}
BOX_EXTRACTORS: Registry[BuildExtractor] = Registry("box feature extractor", _FBNET)
MASK_EXTRACTORS: Registry[BuildExtractor] = Registry("mask feature extractor", _FBNET)
KEYPOINT_EXTRACTORS: Registry[BuildExtractor] = Registry("keypoint feature extractor", _FBNET)
_REGISTRIES = {
    "ROI_BOX_HEAD": BOX_EXTRACTORS,
    "ROI_MASK_HEAD": MASK_EXTRACTORS,
    "ROI_KEYPOINT_HEAD": KEYPOINT_EXTRACTORS,
}


class FPN2MLPFeatureExtractor(Extractor):
    """Pools and applies two fully connected layers, each with an optional norm."""

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
        """Compute [R, width] from [R, C, S, S]."""
        x = self.fc6(pooled.flatten(1))
        x = F.relu(self.norm6(x[..., None, None]))  # the norms expect maps
        return F.relu(self.norm7(self.fc7(x.flatten(1))[..., None, None])).flatten(1)


class ConvFeatureExtractor(Extractor):
    """Pools and applies 3x3 convolutions of `widths` channels, each with an optional norm.

    A fully connected layer follows if `fc_width` is set.
    """

    def __init__(
        self,
        pooler: Pooler,
        in_channels: int,
        widths: Sequence[int],
        fc_width: int | None = None,
        norm: Norm | None = None,
        dilation: int = 1,
        separable: bool = False,
    ) -> None:
        super().__init__()
        self.pooler = pooler
        options: Any = {"norm": norm, "relu": True, "dilation": dilation, "separable": separable}
        pairs = zip([in_channels, *widths], widths, strict=False)
        self.convs = nn.Sequential(*(conv_block(*pair, 3, **options) for pair in pairs))
        self.out_channels, self.out_resolution = [in_channels, *widths][-1], pooler.resolution
        self.fc6 = None
        if fc_width is not None:
            self.fc6 = nn.Linear(self.out_channels * pooler.resolution**2, fc_width)
            self.out_channels, self.out_resolution = fc_width, None
            init_xavier(self.fc6)

    def embed(self, pooled: Tensor) -> Tensor:
        """Compute [R, widths[-1], S, S], or [R, fc_width], from [R, C, S, S]."""
        x = self.convs(pooled)
        return x if self.fc6 is None else F.relu(self.fc6(x.flatten(1)))


class ResNetConv5ROIFeatureExtractor(Extractor):
    """Pools from a C4 map and applies the last stage of a ResNet (Faster R-CNN).

    With `dilation` 2 the stage keeps the size of the map.
    """

    def __init__(self, pooler: Pooler, options: ResNetOptions, dilation: int = 1) -> None:
        super().__init__()
        self.pooler = pooler
        self.res5 = make_stage(options, 5, stride=2 // dilation, dilation=dilation)
        self.out_channels = options.channels(5)
        self.out_resolution = -(-pooler.resolution * dilation // 2)

    def embed(self, pooled: Tensor) -> Tensor:
        """Compute [R, 2 C, S / 2, S / 2] from [R, C, S, S]."""
        return self.res5(pooled)


def build_extractor(cfg: CfgNode, backbone: Backbone, section: str) -> Extractor:
    """Build the extractor of MODEL.<section>: "ROI_BOX_HEAD", "ROI_MASK_HEAD", ..."""
    name, key = cfg.MODEL[section].FEATURE_EXTRACTOR, f"MODEL.{section}.FEATURE_EXTRACTOR"
    return _REGISTRIES[section].get(name, key)(cfg, backbone)


@BOX_EXTRACTORS.register("FPN2MLPFeatureExtractor")
def _build_mlp(cfg: CfgNode, backbone: Backbone) -> Extractor:
    norm, width = build_optional_norm(cfg, "ROI_BOX_HEAD"), cfg.MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM
    pooler = build_pooler(cfg, "ROI_BOX_HEAD", backbone)
    return FPN2MLPFeatureExtractor(pooler, backbone.out_channels, width, norm)


def _build_convs(
    cfg: CfgNode, backbone: Backbone, section: str, separable: bool = False
) -> Extractor:
    head, fc_width = cfg.MODEL[section], None
    if section == "ROI_BOX_HEAD":
        widths, fc_width = [head.CONV_HEAD_DIM] * head.NUM_STACKED_CONVS, head.MLP_HEAD_DIM
    else:
        widths = head.CONV_LAYERS
    pooler, norm = build_pooler(cfg, section, backbone), build_optional_norm(cfg, section)
    channels, dilation = backbone.out_channels, head.get("DILATION", 1)
    return ConvFeatureExtractor(pooler, channels, widths, fc_width, norm, dilation, separable)


def _build_conv5(cfg: CfgNode, backbone: Backbone, section: str) -> Extractor:
    """Build the extractor of MODEL.<section> from the last stage of the ResNet of CONV_BODY."""
    options = build_resnet_options(cfg)
    if backbone.out_channels != options.channels(4):
        raise ValueError(
            f"MODEL.{section}.FEATURE_EXTRACTOR applies the stage res5 to {options.channels(4)} "
            f"channels, but {cfg.MODEL.BACKBONE.CONV_BODY} has {backbone.out_channels}: use a C4 "
            "backbone, or an FPN head such as FPN2MLPFeatureExtractor"
        )
    pooler = build_pooler(cfg, section, backbone)
    return ResNetConv5ROIFeatureExtractor(pooler, options, cfg.MODEL.RESNETS.RES5_DILATION)


for _section, _name, _separable in (
    ("ROI_BOX_HEAD", "FPNXconv1fcFeatureExtractor", False),
    ("ROI_BOX_HEAD", "SeparableXconv1fcFeatureExtractor", True),
    ("ROI_MASK_HEAD", "MaskRCNNFPNFeatureExtractor", False),
    ("ROI_MASK_HEAD", "SeparableConvFeatureExtractor", True),
    ("ROI_KEYPOINT_HEAD", "KeypointRCNNFeatureExtractor", False),
):
    _build = partial(_build_convs, section=_section, separable=_separable)
    _REGISTRIES[_section].register(_name)(_build)
# maskrcnn-benchmark has a name for each depth of the ResNet; here CONV_BODY determines the depth.
for _section in ("ROI_BOX_HEAD", "ROI_MASK_HEAD"):
    _names = [f"ResNet{depth}Conv5ROIFeatureExtractor" for depth in ("", "50", "101")]
    _REGISTRIES[_section].register(*_names)(partial(_build_conv5, section=_section))
