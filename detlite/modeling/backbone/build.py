"""Build backbones from the config."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from yacs.config import CfgNode

from detlite.config import ConfigError
from detlite.conventions import convention_of
from detlite.modeling.layers.conv import replace_crashing_convs
from detlite.modeling.layers.norm import Norm, build_norm, build_optional_norm
from detlite.registry import Registry

from .fpn import FPN, P6P7, SimpleFeaturePyramid
from .mobilenet import MobileNetV3
from .resnet import DEPTHS, ResNet, ResNetOptions
from .timm_backbone import TimmBackbone
from .timm_vit import TimmViT
from .vit import SIZES, ViT, ViTOptions


class Backbone(nn.Sequential):
    """A bottom-up network (`body`) and a neck.

    Converts images [B, 3, H, W] to one map [B, out_channels, ceil(H / stride), ceil(W / stride)]
    per level.

    Attributes:
        strides: image pixels per cell of each level, finest first.
        pooled: the number of leading levels that RoIs are pooled from; the RPN uses all levels.
    """

    in_channels = 3

    def __init__(
        self, body: nn.Module, neck: nn.Module, out_channels: int, strides: tuple[int, ...],
        pooled: int,
    ) -> None:  # fmt: skip
        super().__init__()
        self.body = body
        self.neck = neck
        self.out_channels = out_channels
        self.strides = strides
        self.pooled = pooled

    def layers(self) -> list[list[nn.Parameter]]:
        """Return the parameters of each layer of the bottom-up network, starting at the image.

        Without a method `layers`, each of its children is a layer.
        """
        if layers := getattr(self.body, "layers", None):
            return layers()
        return [list(child.parameters()) for child in self.body.children()]

    @property
    def min_image_side(self) -> int:
        """Smallest height and width of images for an exported graph: two cells of the coarsest
        level, and two windows of a transformer."""
        return max(2 * self.strides[-1], getattr(self.body, "min_image_side", 0))


BACKBONES: Registry[Callable[[CfgNode], Backbone]] = Registry(
    "backbone", {"FBNet": "detlite.modeling.backbone.fbnet"}
)

# Endings of CONV_BODY, and the stages whose maps are used; stage k has stride 2**k.
ENDINGS = {"C4": (4,), "C5": (5,), "FPN": (2, 3, 4, 5), "FPN-RETINANET": (3, 4, 5)}


def build_backbone(cfg: CfgNode) -> Backbone:
    """Build the backbone of MODEL.BACKBONE.CONV_BODY for the channels of INPUT.PIXEL_MEAN."""
    name, channels = cfg.MODEL.BACKBONE.CONV_BODY, len(cfg.INPUT.PIXEL_MEAN)
    builder = "timm" if name.startswith("timm/") else name
    backbone = BACKBONES.get(builder, "MODEL.BACKBONE.CONV_BODY")(cfg)
    if channels != 3:
        set_input_channels(backbone.body, channels)
        backbone.in_channels = channels
        backbone.body.in_channels = channels  # type: ignore[assignment]
    replace_crashing_convs(backbone)
    return backbone


def build_resnet_options(cfg: CfgNode) -> ResNetOptions:
    """Build the ResNet options of CONV_BODY (R-<depth>-...) and MODEL.RESNETS."""
    name = cfg.MODEL.BACKBONE.CONV_BODY
    match = re.match(r"R-(\d+)-", name)
    if not match or int(match[1]) not in DEPTHS:
        raise ValueError(
            f"MODEL.BACKBONE.CONV_BODY {name} does not name a ResNet of depth {sorted(DEPTHS)}"
        )
    resnets, depth = cfg.MODEL.RESNETS, int(match[1])
    return ResNetOptions(
        depth=depth,
        norm=_build_body_norm(cfg),
        stem_channels=resnets.STEM_OUT_CHANNELS,
        res2_channels=resnets.RES2_OUT_CHANNELS or (64 if depth < 50 else 256),
        groups=resnets.NUM_GROUPS,
        width_per_group=resnets.WIDTH_PER_GROUP,
        stride_in_1x1=resnets.STRIDE_IN_1X1,
        deformable=resnets.STAGE_WITH_DCN,
        modulated=resnets.WITH_MODULATED_DCN,
        offset_groups=resnets.DEFORMABLE_GROUPS,
        freeze_norm=convention_of(cfg).freeze_batch_statistics,
    )


def _build_resnet(cfg: CfgNode, ending: str) -> Backbone:
    options, stages = build_resnet_options(cfg), ENDINGS[ending]
    dilation = cfg.MODEL.RESNETS.RES5_DILATION if ending == "C5" else 1
    node = cfg.MODEL.BACKBONE
    bottom_up = ResNet(
        options, stages, node.FREEZE_CONV_BODY_AT, dilation, node.CHECKPOINT_ACTIVATIONS
    )
    channels = [options.channels(stage) for stage in stages]
    return _build_with_neck(cfg, bottom_up, channels, ending, dilation)


@BACKBONES.register("timm")
def _build_timm(cfg: CfgNode) -> Backbone:
    name = cfg.MODEL.BACKBONE.CONV_BODY
    match = re.fullmatch(r"timm/(.+)-(C4|C5|FPN|FPN-RETINANET|SFP)", name)
    if not match:
        raise ValueError(
            f"MODEL.BACKBONE.CONV_BODY is {name!r}, but a backbone of timm is named "
            "timm/<model>-FPN, -FPN-RETINANET, -C4, -C5 or, for a plain vision transformer, -SFP"
        )
    if match[2] == "SFP":
        return _build_with_simple_pyramid(cfg, TimmViT(match[1], _build_vit_options(cfg)))
    strides = [2**stage for stage in ENDINGS[match[2]]]
    node = cfg.MODEL.BACKBONE
    bottom_up = TimmBackbone(
        match[1],
        strides,
        node.FREEZE_CONV_BODY_AT,
        cfg.MODEL.TIMM.FROZEN_NORM,
        node.CHECKPOINT_ACTIVATIONS,
        cfg.MODEL.VIT.DROP_PATH,
    )
    return _build_with_neck(cfg, bottom_up, bottom_up.channels, match[2])


def _build_body_norm(cfg: CfgNode) -> Norm:
    resnets = cfg.MODEL.RESNETS
    norm: Any = build_norm(cfg, resnets.NORM)
    return partial(norm, eps=resnets.BN_EPSILON) if resnets.NORM in ("BN", "SyncBN") else norm


@BACKBONES.register("MobileNetV3-Large-FPN")
def _build_mobilenet(cfg: CfgNode) -> Backbone:
    """Build torchvision's pyramid of two levels of stride 32. RoIs use the first one."""
    body = MobileNetV3(
        _build_body_norm(cfg),
        cfg.MODEL.BACKBONE.FREEZE_CONV_BODY_AT,
        convention_of(cfg).freeze_batch_statistics,
    )
    channels = cfg.MODEL.RESNETS.BACKBONE_OUT_CHANNELS or 256
    neck = FPN(body.channels, channels, build_optional_norm(cfg, "FPN"), cfg.MODEL.FPN.USE_RELU)
    return Backbone(body, neck, channels, strides=(32, 32, 64), pooled=1)


def _build_vit(cfg: CfgNode, size: str) -> Backbone:
    body = ViT(*SIZES[size], cfg.MODEL.VIT.IMAGE_SIZE, _build_vit_options(cfg))
    return _build_with_simple_pyramid(cfg, body)


def _build_vit_options(cfg: CfgNode) -> ViTOptions:
    return ViTOptions(
        window=cfg.MODEL.VIT.WINDOW,
        global_blocks=cfg.MODEL.VIT.GLOBAL_BLOCKS,
        drop_path=cfg.MODEL.VIT.DROP_PATH,
        freeze_at=cfg.MODEL.BACKBONE.FREEZE_CONV_BODY_AT,
        checkpoint_activations=cfg.MODEL.BACKBONE.CHECKPOINT_ACTIVATIONS,
    )


def _build_with_simple_pyramid(cfg: CfgNode, body: ViT | TimmViT) -> Backbone:
    """Add ViTDet's pyramid to a network with one map of stride 16."""
    out_channels = cfg.MODEL.RESNETS.BACKBONE_OUT_CHANNELS or 256
    norm = build_optional_norm(cfg, "FPN") or build_norm(cfg, "LN")
    neck = SimpleFeaturePyramid(body.channels, out_channels, norm, cfg.MODEL.FPN.USE_RELU)
    return Backbone(body, neck, out_channels, (4, 8, 16, 32, 64), pooled=4)


def _build_with_neck(
    cfg: CfgNode, bottom_up: nn.Module, channels: list[int], ending: str, dilation: int = 1
) -> Backbone:
    """Add an FPN to a network with several maps of `channels`; a single map needs no neck.

    `dilation` is 2 if the last stage is dilated and keeps half its stride.
    """
    out_channels = cfg.MODEL.RESNETS.BACKBONE_OUT_CHANNELS
    if len(channels) == 1:
        if out_channels not in (None, channels[0]):
            raise ValueError(
                f"MODEL.RESNETS.BACKBONE_OUT_CHANNELS is {out_channels}, but "
                f"{cfg.MODEL.BACKBONE.CONV_BODY} has {channels[0]}: remove the key"
            )
        stride = 2 ** ENDINGS[ending][0] // dilation
        return Backbone(bottom_up, nn.Identity(), channels[0], strides=(stride,), pooled=1)
    out_channels, top, strides = out_channels or 256, None, (4, 8, 16, 32, 64)
    if ending == "FPN-RETINANET":
        from_c5, relu = cfg.MODEL.RETINANET.USE_C5, cfg.MODEL.RETINANET.P7_RELU
        top = P6P7(channels[-1] if from_c5 else out_channels, out_channels, from_c5, relu)
        strides = (8, 16, 32, 64, 128)
    norm = build_optional_norm(cfg, "FPN")
    neck = FPN(channels, out_channels, norm, cfg.MODEL.FPN.USE_RELU, top)
    return Backbone(bottom_up, neck, out_channels, strides, pooled=4)


def adapt_stem(weight: Tensor, channels: int) -> Tensor:
    """Return the weight [O, channels, k, k] of a first convolution for RGB images, [O, 3, k, k].

    For one channel the filters are summed, so that a gray image has the same response. Otherwise
    they are repeated in order and scaled by 3 / channels (as timm's `adapt_input_conv`).
    """
    if channels == 1:
        return weight.sum(dim=1, keepdim=True)
    return weight[:, torch.arange(channels) % 3] * (3 / channels)


def set_input_channels(body: nn.Module, channels: int) -> None:
    """Adapt the convolutions that read RGB images to `channels`, and make them trainable."""
    stems = [m for m in body.modules() if isinstance(m, nn.Conv2d) and m.in_channels == 3]
    if not stems or any(conv.groups > 1 for conv in stems):
        raise ConfigError(
            f"INPUT.PIXEL_MEAN has {channels} values, but MODEL.BACKBONE.CONV_BODY has no "
            "convolution of three channels that can be adapted: use another backbone, or three "
            "channels"
        )
    for conv in stems:
        conv.weight = nn.Parameter(adapt_stem(conv.weight.detach(), channels))
        conv.in_channels = channels


def adapt_stems(
    source: Mapping[str, Tensor], target: Mapping[str, Tensor], bgr: bool
) -> dict[str, Tensor]:
    """Return the first-convolution weights of `source`, adapted to the channels of `target`.

    Weights that already fit are not returned. `bgr`: the weights of `source` expect BGR images.
    """
    return {
        name: adapt_stem(weight.flip(1) if bgr else weight, target[name].shape[1])
        for name, weight in source.items()
        if name.startswith("backbone.") and name in target and weight.ndim == 4
        and weight.shape[1] == 3 != target[name].shape[1]
        and weight.shape[2:] == target[name].shape[2:]
    }  # fmt: skip


for _depth in DEPTHS:
    for _ending in ENDINGS:
        BACKBONES.register(f"R-{_depth}-{_ending}")(partial(_build_resnet, ending=_ending))
for _size in SIZES:
    BACKBONES.register(f"ViT-{_size}-SFP")(partial(_build_vit, size=_size))
