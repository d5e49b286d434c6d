"""Backbones by name, from the config."""

from __future__ import annotations

import re
from collections.abc import Callable

from torch import Tensor, nn
from yacs.config import CfgNode

from ...convention import convention_of
from ...registry import Registry
from ..norm import build_norm, optional_norm
from .fpn import FPN, P6P7
from .resnet import DEPTHS, ResNet, ResNetSpec
from .timm_body import TimmBody


class Backbone(nn.Sequential):
    """A body and an optional neck, with what the rest of the model must know of its output.

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

    def forward(self, x: Tensor) -> list[Tensor]:
        """[B, 3, H, W] -> one [B, out_channels, ceil(H / stride), ceil(W / stride)] a level."""
        return self.neck(self.body(x))


BACKBONES: Registry[Callable[[CfgNode], Backbone]] = Registry("backbone")


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


def _build_resnet_c4(cfg: CfgNode) -> Backbone:
    spec = resnet_spec(cfg)
    body = ResNet(spec, out_stages=(4,), freeze_at=min(cfg.MODEL.BACKBONE.FREEZE_CONV_BODY_AT, 4))
    return _single_map(cfg, body, spec.channels(4), stride=16)


def _build_resnet_c5(cfg: CfgNode) -> Backbone:
    spec = resnet_spec(cfg)
    dilation = cfg.MODEL.RESNETS.RES5_DILATION
    freeze_at = cfg.MODEL.BACKBONE.FREEZE_CONV_BODY_AT
    body = ResNet(spec, out_stages=(5,), freeze_at=freeze_at, res5_dilation=dilation)
    return _single_map(cfg, body, spec.channels(5), stride=32 // dilation)


def _single_map(cfg: CfgNode, body: nn.Module, channels: int, stride: int) -> Backbone:
    """The body's one map; BACKBONE_OUT_CHANNELS can only say what it is."""
    stated = cfg.MODEL.RESNETS.BACKBONE_OUT_CHANNELS
    if stated not in (None, channels):
        raise ValueError(
            f"MODEL.RESNETS.BACKBONE_OUT_CHANNELS is {stated}, but "
            f"{cfg.MODEL.BACKBONE.CONV_BODY} has {channels}: remove the key"
        )
    return Backbone(body, nn.Identity(), channels, strides=(stride,), pooled=1)


def _build_resnet_fpn(cfg: CfgNode) -> Backbone:
    spec = resnet_spec(cfg)
    stages = (2, 3, 4, 5)
    body = ResNet(spec, stages, freeze_at=cfg.MODEL.BACKBONE.FREEZE_CONV_BODY_AT)
    return _with_fpn(cfg, body, [spec.channels(stage) for stage in stages])


def _build_resnet_fpn_retinanet(cfg: CfgNode) -> Backbone:
    spec = resnet_spec(cfg)
    stages = (3, 4, 5)
    body = ResNet(spec, stages, freeze_at=cfg.MODEL.BACKBONE.FREEZE_CONV_BODY_AT)
    return _with_retinanet_fpn(cfg, body, [spec.channels(stage) for stage in stages])


def _with_fpn(cfg: CfgNode, body: nn.Module, channels: list[int]) -> Backbone:
    """A pyramid of strides 4 to 64 over the body's maps of strides 4 to 32."""
    out_channels = cfg.MODEL.RESNETS.BACKBONE_OUT_CHANNELS or 256
    norm = optional_norm(cfg, "FPN")
    neck = FPN(channels, out_channels, norm=norm, relu=cfg.MODEL.FPN.USE_RELU)
    return Backbone(body, neck, out_channels, strides=(4, 8, 16, 32, 64), pooled=4)


def _with_retinanet_fpn(cfg: CfgNode, body: nn.Module, channels: list[int]) -> Backbone:
    """A pyramid of strides 8 to 128 over the body's maps of strides 8 to 32."""
    out_channels = cfg.MODEL.RESNETS.BACKBONE_OUT_CHANNELS or 256
    from_c5 = cfg.MODEL.RETINANET.USE_C5
    neck = FPN(
        channels,
        out_channels,
        norm=optional_norm(cfg, "FPN"),
        relu=cfg.MODEL.FPN.USE_RELU,
        top=P6P7(channels[-1] if from_c5 else out_channels, out_channels, from_c5),
    )
    return Backbone(body, neck, out_channels, strides=(8, 16, 32, 64, 128), pooled=4)


@BACKBONES.register("timm")
def _build_timm(cfg: CfgNode) -> Backbone:
    name = cfg.MODEL.BACKBONE.CONV_BODY
    match = re.fullmatch(r"timm/(.+)-(C4|C5|FPN|FPN-RETINANET)", name)
    if not match:
        raise ValueError(
            f"MODEL.BACKBONE.CONV_BODY is {name!r}; a body of timm is called timm/<model>-FPN, "
            "-FPN-RETINANET, -C4 or -C5"
        )
    ending = match[2]
    strides = {"C4": (16,), "C5": (32,), "FPN": (4, 8, 16, 32), "FPN-RETINANET": (8, 16, 32)}
    freeze_at = cfg.MODEL.BACKBONE.FREEZE_CONV_BODY_AT
    body = TimmBody(match[1], strides[ending], freeze_at, cfg.MODEL.TIMM.FROZEN_NORM)
    if ending == "FPN":
        return _with_fpn(cfg, body, body.channels)
    if ending == "FPN-RETINANET":
        return _with_retinanet_fpn(cfg, body, body.channels)
    (channels,) = body.channels
    return _single_map(cfg, body, channels, strides[ending][0])


for _depth in DEPTHS:
    BACKBONES.register(f"R-{_depth}-C4")(_build_resnet_c4)
    BACKBONES.register(f"R-{_depth}-C5")(_build_resnet_c5)
    BACKBONES.register(f"R-{_depth}-FPN")(_build_resnet_fpn)
    BACKBONES.register(f"R-{_depth}-FPN-RETINANET")(_build_resnet_fpn_retinanet)
