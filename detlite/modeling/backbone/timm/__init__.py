"""Backbones from timm, which is imported only when one is built."""

import re

from yacs.config import CfgNode

from detlite.modeling.backbone.build import BACKBONES, ENDINGS, Backbone, build_with_neck

from .backbone import TimmBackbone
from .vit import build_timm_vit


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
        return build_timm_vit(cfg, match[1])
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
    return build_with_neck(cfg, bottom_up, bottom_up.channels, match[2])
