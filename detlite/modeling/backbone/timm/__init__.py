"""Backbones from timm, which is imported only when one is built."""

from collections.abc import Sequence

from yacs.config import CfgNode

from detlite.modeling.backbone.build import BODIES, split_name
from detlite.modeling.backbone.vit import build_vit_options

from .backbone import TimmBackbone
from .vit import TimmViT


@BODIES.register("timm")
def _build_timm(cfg: CfgNode, strides: Sequence[int]) -> TimmBackbone | TimmViT:
    node = cfg.MODEL.BACKBONE
    body, neck = split_name(node.CONV_BODY)
    name = body.removeprefix("timm/")
    if neck == "SFP":  # attention in windows, for plain vision transformers
        return TimmViT(name, build_vit_options(cfg))
    return TimmBackbone(
        name,
        strides,
        node.FREEZE_CONV_BODY_AT,
        cfg.MODEL.RESNETS.NORM != "BN",
        node.CHECKPOINT_ACTIVATIONS,
        cfg.MODEL.VIT.DROP_PATH,
    )
