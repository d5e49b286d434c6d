"""Backbones by name, from the config."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from torch import nn
from yacs.config import CfgNode

from detlite.conventions import convention_of
from detlite.modeling.layers.fold_frozen_bn import fold_frozen_norms
from detlite.modeling.layers.norm import build_norm, optional_norm
from detlite.registry import Registry

from .fpn import FPN, P6P7
from .resnet import DEPTHS, ResNet, ResNetSpec
from .simple_pyramid import SimpleFeaturePyramid
from .timm_backbone import TimmBody
from .timm_vit import TimmViT, ViTOptions
from .vit import SIZES, ViT


class Backbone(nn.Sequential):
    """A body and an optional neck, with what the rest of the model must know of its output.

    Images [B, 3, H, W] give one [B, out_channels, ceil(H / stride), ceil(W / stride)] a level.

    Attributes:
        out_channels: channels of every level.
        strides: image pixels per cell of each level, finest first.
        pooled: how many leading levels the heads pool from; the RPN uses them all.
    """

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
        """The parameters of each layer of the body, from the image on.

        As the body's own `layers` gives them, else each of its parts is one.
        """
        if own := getattr(self.body, "layers", None):
            return own()
        return [list(part.parameters()) for part in self.body.children()]


BACKBONES: Registry[Callable[[CfgNode], Backbone]] = Registry(
    "backbone", on_demand={"FBNet": "detlite.modeling.backbone.fbnet"}
)

# How a CONV_BODY may end, and the stages of the body whose maps are taken; stage k has stride 2**k.
ENDINGS = {"C4": (4,), "C5": (5,), "FPN": (2, 3, 4, 5), "FPN-RETINANET": (3, 4, 5)}


def build_backbone(cfg: CfgNode) -> Backbone:
    """The backbone that MODEL.BACKBONE.CONV_BODY names."""
    name = cfg.MODEL.BACKBONE.CONV_BODY
    builder = "timm" if name.startswith("timm/") else name
    return BACKBONES.get(builder, "MODEL.BACKBONE.CONV_BODY")(cfg)


def resnet_spec(cfg: CfgNode) -> ResNetSpec:
    """The ResNet that CONV_BODY (R-<depth>-...) and MODEL.RESNETS describe."""
    name = cfg.MODEL.BACKBONE.CONV_BODY
    match = re.match(r"R-(\d+)-", name)
    if not match or int(match[1]) not in DEPTHS:
        raise ValueError(f"{name} does not name a ResNet of depth {sorted(DEPTHS)}")
    resnets, depth = cfg.MODEL.RESNETS, int(match[1])
    return ResNetSpec(
        depth=depth,
        norm=build_norm(cfg, resnets.NORM),
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
    spec, stages = resnet_spec(cfg), ENDINGS[ending]
    dilation = cfg.MODEL.RESNETS.RES5_DILATION if ending == "C5" else 1
    backbone = cfg.MODEL.BACKBONE
    body = ResNet(
        spec, stages, backbone.FREEZE_CONV_BODY_AT, dilation, backbone.CHECKPOINT_ACTIVATIONS
    )
    return _with_neck(cfg, body, [spec.channels(stage) for stage in stages], ending, dilation)


@BACKBONES.register("timm")
def _build_timm(cfg: CfgNode) -> Backbone:
    name = cfg.MODEL.BACKBONE.CONV_BODY
    match = re.fullmatch(r"timm/(.+)-(C4|C5|FPN|FPN-RETINANET|SFP)", name)
    if not match:
        raise ValueError(
            f"MODEL.BACKBONE.CONV_BODY is {name!r}; a body of timm is called timm/<model>-FPN, "
            "-FPN-RETINANET, -C4, -C5 or, if it is a plain vision transformer, -SFP"
        )
    if match[2] == "SFP":
        vit = TimmViT(match[1], _vit_options(cfg))
        return _with_simple_pyramid(cfg, vit, vit.channels)
    strides = [2**stage for stage in ENDINGS[match[2]]]
    backbone = cfg.MODEL.BACKBONE
    body = TimmBody(
        match[1],
        strides,
        backbone.FREEZE_CONV_BODY_AT,
        cfg.MODEL.TIMM.FROZEN_NORM,
        backbone.CHECKPOINT_ACTIVATIONS,
        cfg.MODEL.VIT.DROP_PATH,
    )
    return _with_neck(cfg, body, body.channels, match[2])


def _build_vit(cfg: CfgNode, size: str) -> Backbone:
    body = ViT(*SIZES[size], cfg.MODEL.VIT.IMAGE_SIZE, _vit_options(cfg))
    return _with_simple_pyramid(cfg, body, body.channels)


def _vit_options(cfg: CfgNode) -> ViTOptions:
    """What MODEL.VIT and MODEL.BACKBONE say of a plain transformer."""
    return ViTOptions(
        window=cfg.MODEL.VIT.WINDOW,
        global_blocks=cfg.MODEL.VIT.GLOBAL_BLOCKS,
        drop_path=cfg.MODEL.VIT.DROP_PATH,
        freeze_at=cfg.MODEL.BACKBONE.FREEZE_CONV_BODY_AT,
        checkpoints=cfg.MODEL.BACKBONE.CHECKPOINT_ACTIVATIONS,
    )


def _with_simple_pyramid(cfg: CfgNode, body: nn.Module, channels: int) -> Backbone:
    """A body of one map of stride 16 and so many channels with ViTDet's pyramid over it."""
    out_channels = cfg.MODEL.RESNETS.BACKBONE_OUT_CHANNELS or 256
    norm = optional_norm(cfg, "FPN") or build_norm(cfg, "LN")
    neck = SimpleFeaturePyramid(channels, out_channels, norm, cfg.MODEL.FPN.USE_RELU)
    return Backbone(body, neck, out_channels, (4, 8, 16, 32, 64), pooled=4)


def _with_neck(
    cfg: CfgNode, body: nn.Module, channels: list[int], ending: str, dilation: int = 1
) -> Backbone:
    """The body with what its ending asks for: its one map as it is, or a pyramid over several.

    `channels` are those of its maps; `dilation` 2 keeps the last map at half its stride.
    """
    fold_frozen_norms(body)
    stated = cfg.MODEL.RESNETS.BACKBONE_OUT_CHANNELS
    if len(channels) == 1:
        if stated not in (None, channels[0]):
            raise ValueError(
                f"MODEL.RESNETS.BACKBONE_OUT_CHANNELS is {stated}, but "
                f"{cfg.MODEL.BACKBONE.CONV_BODY} has {channels[0]}: remove the key"
            )
        stride = 2 ** ENDINGS[ending][0] // dilation
        return Backbone(body, nn.Identity(), channels[0], strides=(stride,), pooled=1)
    out_channels, top, strides = stated or 256, None, (4, 8, 16, 32, 64)
    if ending == "FPN-RETINANET":
        from_c5, relu = cfg.MODEL.RETINANET.USE_C5, cfg.MODEL.RETINANET.P7_RELU
        top = P6P7(channels[-1] if from_c5 else out_channels, out_channels, from_c5, relu)
        strides = (8, 16, 32, 64, 128)
    neck = FPN(channels, out_channels, optional_norm(cfg, "FPN"), cfg.MODEL.FPN.USE_RELU, top)
    return Backbone(body, neck, out_channels, strides, pooled=4)


for _depth in DEPTHS:
    for _ending in ENDINGS:
        BACKBONES.register(f"R-{_depth}-{_ending}")(partial(_build_resnet, ending=_ending))
for _size in SIZES:
    BACKBONES.register(f"ViT-{_size}-SFP")(partial(_build_vit, size=_size))
