"""Mask and keypoint heads alike: maps of regions, from features that may be shared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from yacs.config import CfgNode

from ..registry import Registry
from .backbone import Backbone


def build_map_head(
    cfg: CfgNode,
    head: str,
    backbone: Backbone,
    box_extractor: nn.Module,
    extractors: Registry[Callable[[CfgNode, Backbone], nn.Module]],
    predictors: Registry[Callable[[CfgNode, int], nn.Module]],
) -> tuple[nn.Module | None, nn.Module]:
    """The extractor and the predictor of a head whose predictions are maps.

    Args:
        cfg: the config.
        head: "ROI_MASK_HEAD" or "ROI_KEYPOINT_HEAD".
        backbone: what the head pools from.
        box_extractor: that of the box head.
        extractors, predictors: where the names in the config are looked up.

    Returns:
        The extractor, None if the head shares `box_extractor`, and the predictor.

    Raises:
        ValueError: a RESOLUTION that is not what the head gives, or a box head without maps to
            share.
    """
    node, key = cfg.MODEL[head], f"MODEL.{head}"
    extractor, pooling = None, "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION"
    if not node.SHARE_BOX_FEATURE_EXTRACTOR:
        build = extractors.get(node.FEATURE_EXTRACTOR, f"{key}.FEATURE_EXTRACTOR")
        extractor, pooling = build(cfg, backbone), f"{key}.POOLER_RESOLUTION"
    source: Any = extractor or box_extractor
    if not hasattr(source, "out_resolution"):
        raise ValueError(
            f"{key}.SHARE_BOX_FEATURE_EXTRACTOR is True, but "
            f"{cfg.MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR} gives vectors, not maps: set it to False"
        )
    predictor = predictors.get(node.PREDICTOR, f"{key}.PREDICTOR")(cfg, source.out_channels)
    side = source.out_resolution
    resolution = predictor(torch.zeros(1, source.out_channels, side, side)).shape[-1]
    if resolution != node.RESOLUTION:
        raise ValueError(
            f"{key}.RESOLUTION is {node.RESOLUTION}, but the head gives {resolution} x "
            f"{resolution} from regions of {pooling}: set one to fit the other"
        )
    return extractor, predictor
