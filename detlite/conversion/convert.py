"""Weights of other frameworks as ours, and back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import yaml
from torch import Tensor

from ..modeling.retinanet import RetinaNet
from .categories import categories_for
from .detectron2_zoo import anchor_settings, pixel_settings
from .dialects import Settings
from .layout import (
    add_statistics,
    background_first,
    from_level_0,
    give_res5_to_heads,
    join_shared_stage,
    nest_deformable,
    ratios_slowest,
)
from .names import DROPPED, RULES, TO_TORCHVISION, detect_source, rename
from .settings import is_fast_rcnn, is_rpn_only, settings_for, unstated

SOURCES = (*RULES, "timm")

# Where a detector keeps the entries of a classifier of timm.
TIMM_BODY = "backbone.body.net."


@dataclass(frozen=True)
class Converted:
    """A converted file.

    Attributes:
        model: the state dict by our names.
        settings: config keys and values that these weights need; none for a backbone alone.
        unstated: the part of them that a YAML file of their framework, read here, does not state.
        categories: the categories {"id", "name"} of labels 1, 2, ...
        backbone_only: whether it is an ImageNet classifier, of which the body is used.
    """

    model: dict[str, Tensor]
    settings: Settings = field(default_factory=dict)
    unstated: Settings = field(default_factory=dict)
    categories: list[dict[str, Any]] = field(default_factory=list)
    backbone_only: bool = False

    def config_text(self) -> str:
        """The settings as YAML."""
        tree: dict[str, Any] = {}
        for key, value in self.settings.items():
            *sections, leaf = key.split(".")
            node = tree
            for section in sections:
                node = node.setdefault(section, {})
            node[leaf] = value
        return yaml.safe_dump(tree)


def source_of(content: Any) -> str | None:
    """Which of SOURCES a file's content comes from; None: ours, or unknown."""
    state = _entries(content)
    return None if state is None else detect_source(list(state))


def convert(content: Any, source: str) -> Converted:
    """Converts what a file of another framework holds.

    Args:
        content: the file's dict: a state dict of tensors or arrays, or one under `model`
            (`blobs` in Caffe2's).
        source: one of SOURCES.

    Raises:
        ValueError: no state dict of that source, or a model that we do not have.
    """
    entries = _entries(content)
    if entries is None:
        raise ValueError("holds no state dict: names and tensors or arrays")
    if source == "timm":
        # Its plain ResNets are torchvision's, which become ours.
        if "conv1.weight" not in entries or detect_source(list(entries)) != "torchvision":
            return convert_timm(content)
        source = "torchvision"
    state = {
        rename(name, RULES[source]): torch.as_tensor(value)
        for name, value in entries.items()
        if not DROPPED.search(name)
    }
    nest_deformable(state)
    join_shared_stage(state)
    if source == "caffe2":
        give_res5_to_heads(state)
        if "conv1_gn_s" not in entries:
            add_statistics(state)
    if all(name.startswith("backbone.body.") for name in state):
        return Converted(state, backbone_only=True)
    if any(name.startswith("backbone.body.stages.xif") for name in state):
        return _fbnet(state, source)
    retinanet = any(name.startswith("head.") for name in state)
    needed_parts: tuple[str, ...] = _NEEDED_RCNN
    if retinanet:
        needed_parts = _NEEDED_RETINANET
        # maskrcnn-benchmark has its layers in place of the RPN's
        state = {re.sub(r"^rpn\.head\.", "head.", name): value for name, value in state.items()}
    state = from_level_0(state)
    if is_rpn_only(state):
        needed_parts = _NEEDED_RPN
    elif is_fast_rcnn(state):
        needed_parts = _NEEDED_HEADS
    for needed in _NEEDED + needed_parts:
        # the heads of a cascade are numbered
        if needed not in state and needed.replace("box.", "box.0.") not in state:
            raise ValueError(
                f"looks like {source}'s, but is no R-CNN, RPN or RetinaNet on a ResNet: no {needed}"
            )
    kept: Settings = {}
    if source == "detectron2":
        part = "MODEL.RETINANET" if retinanet else "MODEL.RPN"
        kept = pixel_settings(entries) | anchor_settings(entries, part)
        background_first(state)
        ratios_slowest(state, len(kept.get(f"{part}.ASPECT_RATIOS", ())) or None)
    settings = settings_for(state, source) | kept
    if settings.get("MODEL.RETINANET.LOSS_NORMALIZER") == "moving":
        state["moving_foreground"] = torch.tensor(RetinaNet.START)  # it is not in their files
    kind = "RETINANET" if retinanet else "ROI_BOX_HEAD"
    num_classes = settings[f"MODEL.{kind}.NUM_CLASSES"]
    keypoints = any(name.startswith("roi_heads.keypoint.") for name in state)
    return Converted(
        state, settings, unstated(state, source), categories_for(num_classes, keypoints)
    )


def is_classifier(content: Any) -> bool:
    """Whether a file's content can be a classifier: no part of it is called a backbone."""
    entries = _entries(content)
    return entries is not None and not any(name.startswith("backbone.") for name in entries)


def convert_timm(content: Any) -> Converted:
    """Converts a classifier of timm, for a `TimmBody` of the same model.

    Raises:
        ValueError: no state dict.
    """
    entries = _entries(content)
    if entries is None:
        raise ValueError("holds no state dict: names and tensors or arrays")
    state = {f"{TIMM_BODY}{name}": torch.as_tensor(value) for name, value in entries.items()}
    return Converted(state, backbone_only=True)


def to_torchvision(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our state dict as torchvision's detectors with a ResNet-FPN load it, strictly.

    Raises:
        ValueError: a model that torchvision does not have.
    """
    for names in (
        ["backbone.neck.output.0.0.weight"],
        ["roi_heads.box.feature_extractor.fc6.weight", "head.bbox_pred.weight"],
    ):
        if not any(name in state for name in names):
            raise ValueError(
                "torchvision has R-CNNs with fully connected heads, and RetinaNets, on a feature "
                f"pyramid only; this model has no {' or '.join(names)}"
            )
    renamed = {rename(name, TO_TORCHVISION): value for name, value in state.items()}
    convs = {name.split(".")[2] for name in renamed if re.match(r"roi_heads\.box_head\.\d", name)}
    if convs:  # a sequence: the convolutions, a flattening, the fully connected layer
        place = f"roi_heads.box_head.{len(convs) + 1}."
        renamed = {n.replace("roi_heads.box_head.fc6.", place): v for n, v in renamed.items()}
    return renamed


_NEEDED = ("backbone.body.stem.conv1.weight", "backbone.body.res2.0.conv2.weight")
_NEEDED_RETINANET = (
    "backbone.neck.output.0.0.weight",
    "backbone.neck.top.p6.weight",
    "head.cls_tower.0.0.weight",
    "head.cls_logits.weight",
    "head.bbox_pred.weight",
)
_NEEDED_RPN = ("rpn.head.conv.weight", "rpn.head.cls_logits.weight", "rpn.head.bbox_pred.weight")
_NEEDED_HEADS = (
    "roi_heads.box.predictor.cls_score.weight",
    "roi_heads.box.predictor.bbox_pred.weight",
)
_NEEDED_RCNN = (*_NEEDED_RPN, *_NEEDED_HEADS)


def _entries(content: Any) -> dict[str, Any] | None:
    """The state dict in a file's content."""
    for key in ("model", "blobs", "state_dict"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not content:
        return None
    # Detectron's files note their format among the arrays.
    arrays = {name: value for name, value in content.items() if hasattr(value, "shape")}
    if not arrays or not all(isinstance(name, str) for name in arrays):
        return None
    return {name.removeprefix("module."): value for name, value in arrays.items()}


def _fbnet(state: dict[str, Tensor], source: str) -> Converted:
    """An FBNet's shapes do not say its operators, so its config is that which it was built from."""
    scores = state.get("roi_heads.box.predictor.cls_score.weight")
    categories = [] if scores is None else categories_for(len(scores))
    return Converted(state, unstated=unstated(state, source), categories=categories)
