"""Keys that follow from others: filled in when left out, refused when they contradict."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Sequence
from typing import Any

from yacs.config import CfgNode

from .errors import ConfigError
from .schema import KEYS

logger = logging.getLogger(__name__)

_NORM_FUNCTIONS = {
    "TRANS_FUNC": {
        "BottleneckWithFixedBatchNorm": "FrozenBN",
        "BottleneckWithBatchNorm": "BN",
        "BottleneckWithSyncBatchNorm": "SyncBN",
        "BottleneckWithGN": "GN",
    },
    "STEM_FUNC": {
        "StemWithFixedBatchNorm": "FrozenBN",
        "StemWithBatchNorm": "BN",
        "StemWithSyncBatchNorm": "SyncBN",
        "StemWithGN": "GN",
    },
}


def derive(cfg: CfgNode, given: Collection[str]) -> None:
    """Fills the derived keys of `cfg` in place.

    Args:
        cfg: a mutable config whose derived keys are None unless given.
        given: names of the keys that a file or an override states.

    Raises:
        ConfigError: a given key that contradicts the one it restates.
    """
    _derive_norm(cfg, given)
    body = re.fullmatch(
        r"(?:R-(18|34|50|101|152)|timm/.+)-(C4|C5|FPN|FPN-RETINANET)", cfg.MODEL.BACKBONE.CONV_BODY
    )
    if body:
        resnet, fpn = body[1], body[2].startswith("FPN")
        if resnet and cfg.MODEL.RESNETS.RES2_OUT_CHANNELS is None:
            cfg.MODEL.RESNETS.RES2_OUT_CHANNELS = 64 if int(resnet) < 50 else 256
        if fpn:
            strides: tuple[int, ...] = (4, 8, 16, 32, 64)
            if body[2] == "FPN-RETINANET":
                strides = (8, 16, 32, 64, 128)
            if cfg.MODEL.RESNETS.BACKBONE_OUT_CHANNELS is None:
                cfg.MODEL.RESNETS.BACKBONE_OUT_CHANNELS = 256
        elif not resnet:  # how wide its map is, timm knows
            strides = (32 if body[2] == "C5" else 16,)
        else:
            c5 = body[2] == "C5"
            strides = (32 // cfg.MODEL.RESNETS.RES5_DILATION if c5 else 16,)
            width = (8 if c5 else 4) * cfg.MODEL.RESNETS.RES2_OUT_CHANNELS
            _restate(cfg.MODEL.RESNETS, "MODEL.RESNETS", "BACKBONE_OUT_CHANNELS", width,
                     "MODEL.RESNETS.RES2_OUT_CHANNELS")  # fmt: skip
        restate_strides(cfg, strides)
    if cfg.SOLVER.WEIGHT_DECAY_NORM is None:
        cfg.SOLVER.WEIGHT_DECAY_NORM = cfg.SOLVER.WEIGHT_DECAY
    _derive_detections(cfg, given)


def restate_strides(cfg: CfgNode, strides: Sequence[int]) -> None:
    """Fills or checks the keys that restate the strides of the backbone's levels.

    Args:
        cfg: a mutable config.
        strides: strides of the anchors' levels; with more than one, all but the last are pooled.
    """
    retinanet = cfg.MODEL.RETINANET_ON
    fpn = len(strides) > 1
    body = "MODEL.BACKBONE.CONV_BODY"
    model = cfg.MODEL
    _restate(model.RPN, "MODEL.RPN", "USE_FPN", fpn, body)
    # Files of the one kind of detector leave what the other's parts restate at any value.
    heads = not (retinanet or model.RPN_ONLY)
    if heads or model.ROI_HEADS.USE_FPN is None:
        _restate(model.ROI_HEADS, "MODEL.ROI_HEADS", "USE_FPN", fpn, body)
    if not retinanet:
        model.RETINANET["ANCHOR_STRIDES"] = None
    _restate(model.RETINANET, "MODEL.RETINANET", "ANCHOR_STRIDES", tuple(strides), body)
    if not retinanet or model.RPN.ANCHOR_STRIDE is None:
        _restate(model.RPN, "MODEL.RPN", "ANCHOR_STRIDE", tuple(strides), body)
    scales = tuple(1.0 / stride for stride in (strides[:-1] if fpn else strides))
    if heads or model.ROI_BOX_HEAD.POOLER_SCALES is None:
        _restate(model.ROI_BOX_HEAD, "MODEL.ROI_BOX_HEAD", "POOLER_SCALES", scales, body)
    for name, on in (("ROI_MASK_HEAD", model.MASK_ON), ("ROI_KEYPOINT_HEAD", model.KEYPOINT_ON)):
        head = model[name]
        # Files that share the box head's features leave a head's own scales at any value.
        pools = on and not head.SHARE_BOX_FEATURE_EXTRACTOR
        if pools or head.POOLER_SCALES is None:
            _restate(head, f"MODEL.{name}", "POOLER_SCALES", scales, body)
    part = "RETINANET" if retinanet else "RPN"
    sizes = len(model[part].ANCHOR_SIZES)
    if fpn and sizes != len(strides):
        raise ConfigError(
            f"MODEL.{part}.ANCHOR_SIZES has {sizes} levels, but {body} "
            f"({model.BACKBONE.CONV_BODY}) gives {len(strides)}: one size, or one tuple of sizes, "
            "for each"
        )


def class_count(cfg: CfgNode) -> tuple[str, int]:
    """The key that says how many classes, with background, the config's detector has; its value."""
    if cfg.MODEL.RETINANET_ON:
        return "MODEL.RETINANET.NUM_CLASSES", cfg.MODEL.RETINANET.NUM_CLASSES
    return "MODEL.ROI_BOX_HEAD.NUM_CLASSES", cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES


def _derive_detections(cfg: CfgNode, given: Collection[str]) -> None:
    """In maskrcnn-benchmark one key counts for RetinaNet, the other for all else."""
    key, heads, test = "MODEL.ROI_HEADS.DETECTIONS_PER_IMG", cfg.MODEL.ROI_HEADS, cfg.TEST
    if cfg.MODEL.RETINANET_ON and test.DETECTIONS_PER_IMG is not None:
        heads.DETECTIONS_PER_IMG = test.DETECTIONS_PER_IMG
    elif key in given and test.DETECTIONS_PER_IMG not in (None, heads.DETECTIONS_PER_IMG):
        logger.warning("TEST.DETECTIONS_PER_IMG has no effect beside %s", key)
        test.DETECTIONS_PER_IMG = heads.DETECTIONS_PER_IMG
    _restate(test, "TEST", "DETECTIONS_PER_IMG", heads.DETECTIONS_PER_IMG, key)


def _derive_norm(cfg: CfgNode, given: Collection[str]) -> None:
    resnets = cfg.MODEL.RESNETS
    for key, meanings in _NORM_FUNCTIONS.items():
        name = resnets[key]
        if name is None:
            continue
        if name not in meanings:
            raise ConfigError(
                f"MODEL.RESNETS.{key} is {name!r}, but must be one of {', '.join(meanings)}"
            )
        # Old files say the norm by these two alone: the first sets NORM, the rest must agree.
        if "MODEL.RESNETS.NORM" not in given and (
            key == "TRANS_FUNC" or resnets.TRANS_FUNC is None
        ):
            resnets.NORM = meanings[name]
    for key, meanings in _NORM_FUNCTIONS.items():
        name = next(name for name, norm in meanings.items() if norm == resnets.NORM)
        _restate(resnets, "MODEL.RESNETS", key, name, "MODEL.RESNETS.NORM")


def _restate(node: CfgNode, prefix: str, key: str, value: Any, origin: str) -> None:
    """Sets node[key] to the value that follows from `origin`, or checks that it is that."""
    given = node[key]
    if given is not None and given != value:
        raise ConfigError(
            f"{prefix}.{key} is {given!r}, but {origin} makes it {value!r}: "
            "remove the key, or change one of the two"
        )
    node[key] = value


def forget_restatements(cfg: CfgNode, given: Collection[str]) -> None:
    """Resets derived keys that repeat what follows from the others, so that these may be changed.

    The config that a run leaves states every key, though nobody wrote the derived ones.

    Args:
        cfg: a mutable config as its files state it, before overrides.
        given: names of the keys that the files state.
    """
    for name in (key.name for key in KEYS if key.derived_type and key.name in given):
        *sections, leaf = name.split(".")
        node, bare = cfg, cfg.clone()
        bare_node = bare
        for section in sections:
            node, bare_node = node[section], bare_node[section]
        bare_node[leaf] = None
        try:
            derive(bare, set(given) - {name})
        except ConfigError:  # a contradiction, which the overrides may yet resolve
            continue
        if bare_node[leaf] == node[leaf]:
            node[leaf] = None
