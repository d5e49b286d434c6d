"""Necks by the endings of CONV_BODY: they choose the maps of a body, and combine them to levels."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import nn
from yacs.config import CfgNode

from detlite.modeling.layers.norm import build_norm, build_optional_norm

from .build import NECKS, Backbone
from .fpn import FPN, P6P7
from .simple_pyramid import SimpleFeaturePyramid

MakeBody = Callable[[Sequence[int]], Any]  # see `NECKS`


def _build_single(cfg: CfgNode, make_body: MakeBody, stride: int) -> Backbone:
    """Build a body with one map, which needs no neck."""
    body, out_channels = make_body((stride,)), cfg.MODEL.RESNETS.BACKBONE_OUT_CHANNELS
    if out_channels not in (None, body.channels[0]):
        raise ValueError(
            f"MODEL.RESNETS.BACKBONE_OUT_CHANNELS is {out_channels}, but "
            f"{cfg.MODEL.BACKBONE.CONV_BODY} has {body.channels[0]}: remove the key"
        )
    return Backbone(body, nn.Identity(), body.channels[0], strides=body.strides, pooled=1)


NECKS.register("C4")(partial(_build_single, stride=16))
NECKS.register("C5")(partial(_build_single, stride=32))


@NECKS.register("FPN")
def _build_fpn(cfg: CfgNode, make_body: MakeBody) -> Backbone:
    body, channels = make_body((4, 8, 16, 32)), cfg.MODEL.RESNETS.BACKBONE_OUT_CHANNELS or 256
    neck = FPN(body.channels, channels, build_optional_norm(cfg, "FPN"), cfg.MODEL.FPN.USE_RELU)
    return Backbone(body, neck, channels, (4, 8, 16, 32, 64), pooled=4)


@NECKS.register("FPN-RETINANET")
def _build_retinanet_fpn(cfg: CfgNode, make_body: MakeBody) -> Backbone:
    body, channels = make_body((8, 16, 32)), cfg.MODEL.RESNETS.BACKBONE_OUT_CHANNELS or 256
    from_c5, relu = cfg.MODEL.RETINANET.USE_C5, cfg.MODEL.RETINANET.P7_RELU
    top = P6P7(body.channels[-1] if from_c5 else channels, channels, from_c5, relu)
    norm = build_optional_norm(cfg, "FPN")
    neck = FPN(body.channels, channels, norm, cfg.MODEL.FPN.USE_RELU, top)
    return Backbone(body, neck, channels, (8, 16, 32, 64, 128), pooled=4)


@NECKS.register("SFP")
def _build_simple_pyramid(cfg: CfgNode, make_body: MakeBody) -> Backbone:
    """Build ViTDet's pyramid."""
    body, channels = make_body((16,)), cfg.MODEL.RESNETS.BACKBONE_OUT_CHANNELS or 256
    norm = build_optional_norm(cfg, "FPN") or build_norm(cfg, "LN")
    neck = SimpleFeaturePyramid(body.channels[0], channels, norm, cfg.MODEL.FPN.USE_RELU)
    return Backbone(body, neck, channels, (4, 8, 16, 32, 64), pooled=4)
