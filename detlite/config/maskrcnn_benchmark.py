"""Compatibility with maskrcnn-benchmark's keys that only repeat other keys.

Its YAML files contain such keys, for example POOLER_SCALES, which follow from CONV_BODY. They are
checked against the keys that they restate, used for values that are not set, and dropped.
"""

import logging
import re
from collections.abc import Collection, Mapping
from typing import Any

from yacs.config import CfgNode

from detlite.errors import ConfigError

from .key import Key, each, one_of, positive

logger = logging.getLogger(__name__)

_META = "MODEL.META_ARCHITECTURE"
_CONV_BODY = "MODEL.BACKBONE.CONV_BODY"
_NORM = "MODEL.RESNETS.NORM"
_CHANNELS, _OLD_CHANNELS = "MODEL.RESNETS.BACKBONE_OUT_CHANNELS", "MODEL.BACKBONE.OUT_CHANNELS"
_DETECTIONS = "MODEL.ROI_HEADS.DETECTIONS_PER_IMG"

_DETECTORS = {"MODEL.RETINANET_ON": "RetinaNet", "MODEL.RPN_ONLY": "ProposalNetwork"}
_NORMS = {"FrozenBN": "FixedBatchNorm", "BN": "BatchNorm", "SyncBN": "SyncBatchNorm", "GN": "GN"}
_NORM_FUNCTIONS = {
    f"MODEL.RESNETS.{key}": {f"{prefix}With{name}": norm for norm, name in _NORMS.items()}
    for key, prefix in (("TRANS_FUNC", "Bottleneck"), ("STEM_FUNC", "Stem"))
}
_GROUP_NORMS = {
    f"MODEL.{part}.USE_GN": f"MODEL.{part}.NORM"
    for part in ("FPN", "ROI_BOX_HEAD", "ROI_MASK_HEAD")
}
_FPN = (4, 8, 16, 32, 64)
_RETINANET = (8, 16, 32, 64, 128)
_STRIDES = {"C4": (16,), "C5": (32,), "FPN": _FPN, "SFP": _FPN, "FPN-RETINANET": _RETINANET}
_TUPLES = (
    "RPN.ANCHOR_STRIDE", "RETINANET.ANCHOR_STRIDES", "ROI_BOX_HEAD.POOLER_SCALES",
    "ROI_MASK_HEAD.POOLER_SCALES", "ROI_KEYPOINT_HEAD.POOLER_SCALES",
)  # fmt: skip

RESTATING: dict[str, Key] = {
    name: Key(name, None, check, key_type, origin, f"restates {origin}")
    for name, origin, key_type, check in (
        *((name, _META, bool, None) for name in _DETECTORS),
        *((name, _NORM, str, one_of(*names)) for name, names in _NORM_FUNCTIONS.items()),
        *((name, origin, bool, None) for name, origin in _GROUP_NORMS.items()),
        ("TEST.DETECTIONS_PER_IMG", _DETECTIONS, int, positive),
        (_OLD_CHANNELS, _CHANNELS, int, positive),
        ("MODEL.RPN.USE_FPN", _CONV_BODY, bool, None),
        ("MODEL.ROI_HEADS.USE_FPN", _CONV_BODY, bool, None),
        *((f"MODEL.{name}", _CONV_BODY, tuple, each(positive)) for name in _TUPLES),
    )
}


def translate(cfg: CfgNode, stated: Mapping[str, Any], keys_set: Collection[str]) -> None:
    """Apply the values `stated` of keys in RESTATING to a mutable config.

    `keys_set` are the names of all other keys in the files and overrides.

    Raises:
        ConfigError: a key contradicts the key that it restates.
    """
    _apply_detector(cfg.MODEL, stated)
    _apply_norms(cfg.MODEL, stated, keys_set)
    _apply_max_detections(cfg, stated, keys_set)
    _apply_channels(cfg.MODEL, stated, keys_set)
    _check(stated, _CONV_BODY, _pyramid_keys(cfg.MODEL))


def _apply_detector(model: CfgNode, stated: Mapping[str, Any]) -> None:
    detector = next((name for key, name in _DETECTORS.items() if stated.get(key)), None)
    if detector and model.META_ARCHITECTURE == "GeneralizedRCNN":  # its only value
        model.META_ARCHITECTURE = detector
    implied = {key: name == model.META_ARCHITECTURE for key, name in _DETECTORS.items()}
    if model.META_ARCHITECTURE == "RetinaNet":
        del implied["MODEL.RPN_ONLY"]  # any value
    _check(stated, _META, implied)


def _apply_norms(model: CfgNode, stated: Mapping[str, Any], keys_set: Collection[str]) -> None:
    # Its files have no NORM: TRANS_FUNC or STEM_FUNC sets it, and the other must agree.
    first = next((key for key in _NORM_FUNCTIONS if key in stated), None)
    if first and _NORM not in keys_set:
        model.RESNETS.NORM = _NORM_FUNCTIONS[first][stated[first]]
    for key, names in _NORM_FUNCTIONS.items():
        functions = {norm: name for name, norm in names.items()}
        _check(stated, _NORM, {key: functions.get(model.RESNETS.NORM, "none of its functions")})
    for key, origin in _GROUP_NORMS.items():
        part = model[origin.split(".")[1]]
        if stated.get(key) and not part.NORM:
            part.NORM = "GN"
        _check(stated, origin, {key: part.NORM == "GN"})


def _apply_max_detections(
    cfg: CfgNode, stated: Mapping[str, Any], keys_set: Collection[str]
) -> None:
    """Apply TEST.DETECTIONS_PER_IMG, which maskrcnn-benchmark uses for RetinaNet only."""
    key, heads = "TEST.DETECTIONS_PER_IMG", cfg.MODEL.ROI_HEADS
    if cfg.MODEL.META_ARCHITECTURE == "RetinaNet":
        heads.DETECTIONS_PER_IMG = stated.get(key, heads.DETECTIONS_PER_IMG)
    elif _DETECTIONS not in keys_set:
        _check(stated, _DETECTIONS, {key: heads.DETECTIONS_PER_IMG})
    elif stated.get(key, heads.DETECTIONS_PER_IMG) != heads.DETECTIONS_PER_IMG:
        logger.warning("%s has no effect, because %s is set", key, _DETECTIONS)


def _apply_channels(model: CfgNode, stated: Mapping[str, Any], keys_set: Collection[str]) -> None:
    """Apply the number of output channels by its name in the first version."""
    if "FPN" in model.BACKBONE.CONV_BODY and _OLD_CHANNELS in stated:
        if _CHANNELS not in keys_set:
            model.RESNETS.BACKBONE_OUT_CHANNELS = stated[_OLD_CHANNELS]
        _check(stated, _CHANNELS, {_OLD_CHANNELS: model.RESNETS.BACKBONE_OUT_CHANNELS})
    elif re.fullmatch(r"R-(50|101|152)-C4", model.BACKBONE.CONV_BODY):
        channels = 4 * (model.RESNETS.RES2_OUT_CHANNELS or 256)
        _check(stated, _CONV_BODY, {_OLD_CHANNELS: channels})


def _pyramid_keys(model: CfgNode) -> dict[str, Any]:
    """Return the keys that follow from the levels of the backbone; none for other backbones."""
    match = re.fullmatch(
        r"(R-\d+|ViT-\w|timm/.+?)-(C4|C5|FPN|FPN-RETINANET|SFP)", model.BACKBONE.CONV_BODY
    )
    if not match:
        return {}
    strides = _STRIDES[match[2]]
    if match[2] == "C5" and match[1].startswith("R-"):
        strides = (32 // model.RESNETS.RES5_DILATION,)
    fpn = len(strides) > 1
    scales = tuple(1.0 / stride for stride in (strides[:-1] if fpn else strides))
    # Keys of parts that the detector does not have may have any value.
    retinanet = model.META_ARCHITECTURE == "RetinaNet"
    anchors = "MODEL.RETINANET.ANCHOR_STRIDES" if retinanet else "MODEL.RPN.ANCHOR_STRIDE"
    implied: dict[str, Any] = {"MODEL.RPN.USE_FPN": fpn, anchors: strides}
    if model.META_ARCHITECTURE not in _DETECTORS.values():
        implied["MODEL.ROI_HEADS.USE_FPN"] = fpn
        implied["MODEL.ROI_BOX_HEAD.POOLER_SCALES"] = scales
    for head, on in (("ROI_MASK_HEAD", model.MASK_ON), ("ROI_KEYPOINT_HEAD", model.KEYPOINT_ON)):
        # The same for heads that share the box head's features.
        if on and not model[head].SHARE_BOX_FEATURE_EXTRACTOR:
            implied[f"MODEL.{head}.POOLER_SCALES"] = scales
    return implied


def _check(stated: Mapping[str, Any], origin: str, implied: Mapping[str, Any]) -> None:
    """Compare keys with the values that follow from `origin`."""
    for key, value in implied.items():
        if stated.get(key, value) != value:
            raise ConfigError(
                f"{key} is {stated[key]!r}, but {origin} implies {value!r}. Remove the key, or "
                "change one of them"
            )
