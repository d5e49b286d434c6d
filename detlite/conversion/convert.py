"""Weights of other frameworks as ours, and back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
import yaml
from torch import Tensor

from ..modeling.retinanet import RetinaNet
from .coco_categories import categories_for
from .names import DROPPED, RULES, TO_TORCHVISION, detect_source, rename
from .settings import Settings, is_rpn_only, settings_for, unstated

SOURCES = (*RULES, "timm")

# Frameworks whose last class is the background; ours is the first.
_BACKGROUND_LAST = ("detectron2",)
# C4 models of maskrcnn-benchmark list the stage that their heads share once for each head.
_SHARED = re.compile(r"^roi_heads\.(mask|keypoint)\.feature_extractor\.res5\.")

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
    state = {name: value for name, value in state.items() if not _SHARED.match(name)}
    _nest_deformable(state)
    if source == "caffe2":
        _give_res5_to_heads(state)
        if "conv1_gn_s" not in entries:
            _add_statistics(state)
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
    state = _from_level_0(state)
    if is_rpn_only(state):
        needed_parts = _NEEDED_RPN
    for needed in _NEEDED + needed_parts:
        # the heads of a cascade are numbered
        if needed not in state and needed.replace("box.", "box.0.") not in state:
            raise ValueError(
                f"looks like {source}'s, but is no R-CNN, RPN or RetinaNet on a ResNet: no {needed}"
            )
    if source in _BACKGROUND_LAST:
        _background_first(state)
        _ratios_slowest(state)
    settings = settings_for(state, source)
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
_NEEDED_RCNN = (
    *_NEEDED_RPN,
    "roi_heads.box.predictor.cls_score.weight",
    "roi_heads.box.predictor.bbox_pred.weight",
)


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


def _nest_deformable(state: dict[str, Tensor]) -> None:
    """Puts a convolution beside that of its offsets, as detectron2's, under the same layer."""
    for name in [name for name in state if name.endswith(".conv2.offset.weight")]:
        layer = name.removesuffix(".offset.weight")
        if f"{layer}.weight" in state:
            state[f"{layer}.conv.weight"] = state.pop(f"{layer}.weight")


def _from_level_0(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Numbers a pyramid's levels from 0, also where its finest is P3."""
    level = re.compile(r"^(backbone\.neck\.(?:lateral|output)\.)(\d+)")
    found = [int(match[2]) for match in map(level.match, state) if match]
    first = min(found, default=0)
    return {
        level.sub(lambda match: f"{match[1]}{int(match[2]) - first}", name): value
        for name, value in state.items()
    }


def _background_first(state: dict[str, Tensor]) -> None:
    """Moves the background, which has scores but neither boxes nor masks, to class 0."""
    rows = {"bbox_pred": 4, "mask_fcn_logits": 1}
    for name, value in state.items():
        layer = name.split(".")[-2]
        if layer == "cls_score":
            state[name] = value.roll(1, dims=0)
        elif layer in rows and name.startswith("roi_heads."):
            background = value.new_zeros((rows[layer], *value.shape[1:]))
            state[name] = torch.cat([background, value])


def _ratios_slowest(state: dict[str, Tensor], ratios: int = 3) -> None:
    """Reorders the anchors of a cell: by size, then ratio, becomes by ratio, then size."""
    for head in ("rpn.head.", "head."):
        if f"{head}bbox_pred.bias" not in state:
            continue
        anchors_per_cell = len(state[f"{head}bbox_pred.bias"]) // 4
        for layer, leaf in product(("cls_logits", "bbox_pred"), ("weight", "bias")):
            name = f"{head}{layer}.{leaf}"
            values = len(state[name]) // anchors_per_cell
            anchors = state[name].unflatten(0, (-1, ratios, values))
            state[name] = anchors.transpose(0, 1).flatten(0, 2)


def _fbnet(state: dict[str, Tensor], source: str) -> Converted:
    """An FBNet's shapes do not say its operators, so its config is that which it was built from."""
    scores = state.get("roi_heads.box.predictor.cls_score.weight")
    categories = [] if scores is None else categories_for(len(scores))
    return Converted(state, unstated=unstated(state, source), categories=categories)


def _give_res5_to_heads(state: dict[str, Tensor]) -> None:
    """Moves the last stage to the box head of a C4 model; the names do not say whose it is."""
    if not (
        "roi_heads.box.predictor.cls_score.weight" in state
        and "roi_heads.box.feature_extractor.fc6.weight" not in state
    ):
        return
    body = "backbone.body.res5."
    for name in [name for name in state if name.startswith(body)]:
        state[name.replace(body, "roi_heads.box.feature_extractor.res5.")] = state.pop(name)


def _add_statistics(state: dict[str, Tensor]) -> None:
    """Where batch statistics are folded into the scales, what is left are mean 0 and variance 1."""
    for name, value in list(state.items()):
        layer, _, leaf = name.rpartition(".")
        if leaf == "weight" and re.search(r"\.(res\d\.\d+|stem)\.(norm\d|downsample\.1)$", layer):
            state.setdefault(f"{layer}.running_mean", torch.zeros_like(value))
            state.setdefault(f"{layer}.running_var", torch.ones_like(value))
