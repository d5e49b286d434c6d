"""Keys of maskrcnn-benchmark that only restate others: read, checked, given their meaning, dropped.

Its YAML files, and the full configs that its training leaves, state such keys; a model is built
without them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from typing import Any

from yacs.config import CfgNode

from .checks import Check, each, one_of, positive
from .errors import ConfigError
from .schema.key import Key

logger = logging.getLogger(__name__)

# Keys that are left out, and why they have no effect here.
NO_EFFECT = {
    "AMP_VERBOSE": "mixed precision is torch.amp's, which has no such switch",
    "MODEL.ROI_MASK_HEAD.POSTPROCESS_MASKS": "masks are always pasted into the image",
    "MODEL.ROI_MASK_HEAD.MLP_HEAD_DIM": "no mask head has a fully connected layer",
    "MODEL.ROI_KEYPOINT_HEAD.MLP_HEAD_DIM": "no keypoint head has a fully connected layer",
    "MODEL.RETINANET.STRADDLE_THRESH": "RetinaNet is trained on every anchor, there as well",
    "PATHS_CATALOG": "data sets are built in or in DATASETS.CATALOG",
}

_META = "MODEL.META_ARCHITECTURE"
_BODY = "MODEL.BACKBONE.CONV_BODY"
_NORM = "MODEL.RESNETS.NORM"
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
_STRIDES = {
    "C4": (16,),
    "C5": (32,),
    "FPN": (4, 8, 16, 32, 64),
    "FPN-RETINANET": (8, 16, 32, 64, 128),
    "SFP": (4, 8, 16, 32, 64),
}


def _restating(name: str, origin: str, kind: type, check: Check | None = None) -> Key:
    return Key(name, None, f"restates {origin}", check, kind, origin)


RESTATING: dict[str, Key] = {
    key.name: key
    for key in (
        *(_restating(name, _META, bool) for name in _DETECTORS),
        *(_restating(name, _NORM, str, one_of(*names)) for name, names in _NORM_FUNCTIONS.items()),
        *(_restating(name, origin, bool) for name, origin in _GROUP_NORMS.items()),
        _restating("TEST.DETECTIONS_PER_IMG", _DETECTIONS, int, positive),
        _restating("MODEL.RPN.USE_FPN", _BODY, bool),
        _restating("MODEL.ROI_HEADS.USE_FPN", _BODY, bool),
        _restating("MODEL.RPN.ANCHOR_STRIDE", _BODY, tuple, each(positive)),
        _restating("MODEL.RETINANET.ANCHOR_STRIDES", _BODY, tuple, each(positive)),
        *(
            _restating(f"MODEL.{head}.POOLER_SCALES", _BODY, tuple, each(positive))
            for head in ("ROI_BOX_HEAD", "ROI_MASK_HEAD", "ROI_KEYPOINT_HEAD")
        ),
    )
}


def translate(cfg: CfgNode, stated: Mapping[str, Any], given: Collection[str]) -> None:
    """Gives a config the meaning of the restating keys.

    Args:
        cfg: a mutable config.
        stated: keys of RESTATING and their values.
        given: names of the other keys that a file or an override states.

    Raises:
        ConfigError: a key that contradicts the one that it restates.
    """
    _name_detector(cfg.MODEL, stated)
    _name_norms(cfg.MODEL, stated, given)
    _count_detections(cfg, stated, given)
    _check(stated, _BODY, _levels(cfg.MODEL))


def _name_detector(model: CfgNode, stated: Mapping[str, Any]) -> None:
    detector = next((name for key, name in _DETECTORS.items() if stated.get(key)), None)
    if detector and model.META_ARCHITECTURE == "GeneralizedRCNN":  # it has no other
        model.META_ARCHITECTURE = detector
    found = model.META_ARCHITECTURE
    implied = {key: found == name for key, name in _DETECTORS.items()}
    if found == "RetinaNet":
        del implied["MODEL.RPN_ONLY"]  # says nothing more
    _check(stated, _META, implied)


def _name_norms(model: CfgNode, stated: Mapping[str, Any], given: Collection[str]) -> None:
    # Its files say the norm by these two alone: the first sets NORM, the rest must agree.
    first = next((key for key in _NORM_FUNCTIONS if key in stated), None)
    if first and _NORM not in given:
        model.RESNETS.NORM = _NORM_FUNCTIONS[first][stated[first]]
    for key, names in _NORM_FUNCTIONS.items():
        functions = {norm: name for name, norm in names.items()}
        _check(stated, _NORM, {key: functions.get(model.RESNETS.NORM, "none of its functions")})
    for key, origin in _GROUP_NORMS.items():
        part = model[origin.split(".")[1]]
        if stated.get(key) and not part.NORM:
            part.NORM = "GN"
        _check(stated, origin, {key: part.NORM == "GN"})


def _count_detections(cfg: CfgNode, stated: Mapping[str, Any], given: Collection[str]) -> None:
    """There one key counts for RetinaNet, the other for all else."""
    key, heads = "TEST.DETECTIONS_PER_IMG", cfg.MODEL.ROI_HEADS
    if cfg.MODEL.META_ARCHITECTURE == "RetinaNet":
        heads.DETECTIONS_PER_IMG = stated.get(key, heads.DETECTIONS_PER_IMG)
    elif _DETECTIONS not in given:
        _check(stated, _DETECTIONS, {key: heads.DETECTIONS_PER_IMG})
    elif stated.get(key, heads.DETECTIONS_PER_IMG) != heads.DETECTIONS_PER_IMG:
        logger.warning("%s has no effect beside %s", key, _DETECTIONS)


def _levels(model: CfgNode) -> dict[str, Any]:
    """The keys that must restate the levels of the backbone; none of one that is not known here."""
    body = re.fullmatch(
        r"(R-\d+|ViT-\w|timm/.+?)-(C4|C5|FPN|FPN-RETINANET|SFP)", model.BACKBONE.CONV_BODY
    )
    if not body:
        return {}
    strides = _STRIDES[body[2]]
    if body[2] == "C5" and body[1].startswith("R-"):
        strides = (32 // model.RESNETS.RES5_DILATION,)
    fpn = len(strides) > 1
    scales = tuple(1.0 / stride for stride in (strides[:-1] if fpn else strides))
    implied: dict[str, Any] = {"MODEL.RPN.USE_FPN": fpn}
    # Files of one kind of detector leave what the others' parts restate at any value.
    if model.META_ARCHITECTURE == "RetinaNet":
        implied["MODEL.RETINANET.ANCHOR_STRIDES"] = strides
    else:
        implied["MODEL.RPN.ANCHOR_STRIDE"] = strides
    if model.META_ARCHITECTURE not in _DETECTORS.values():
        implied["MODEL.ROI_HEADS.USE_FPN"] = fpn
        implied["MODEL.ROI_BOX_HEAD.POOLER_SCALES"] = scales
    for head, on in (("ROI_MASK_HEAD", model.MASK_ON), ("ROI_KEYPOINT_HEAD", model.KEYPOINT_ON)):
        # So do those that share the box head's features.
        if on and not model[head].SHARE_BOX_FEATURE_EXTRACTOR:
            implied[f"MODEL.{head}.POOLER_SCALES"] = scales
    return implied


def _check(stated: Mapping[str, Any], origin: str, implied: Mapping[str, Any]) -> None:
    """Compares stated keys with the values that follow for them from `origin`."""
    for key, value in implied.items():
        if stated.get(key, value) != value:
            raise ConfigError(
                f"{key} is {stated[key]!r}, but {origin} makes it {value!r}: "
                "remove the key, or change one of the two"
            )
