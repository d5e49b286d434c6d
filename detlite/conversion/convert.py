"""Weights of other frameworks as ours, and back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import yaml
from torch import Tensor

from .coco_categories import categories_for
from .names import DROPPED, RULES, TO_TORCHVISION, detect_source, rename
from .settings import Settings, settings_for

SOURCES = tuple(RULES)

# Frameworks whose last class is the background; ours is the first.
_BACKGROUND_LAST = ("detectron2",)
# C4 models of maskrcnn-benchmark list the stage that their heads share once for each head.
_SHARED = re.compile(r"^roi_heads\.(mask|keypoint)\.feature_extractor\.res5\.")


@dataclass(frozen=True)
class Converted:
    """A converted file.

    Attributes:
        model: the state dict by our names.
        settings: config keys and values that these weights need; none for a backbone alone.
        categories: the categories {"id", "name"} of labels 1, 2, ...
        backbone_only: whether it is an ImageNet classifier, of which the body is used.
    """

    model: dict[str, Tensor]
    settings: Settings = field(default_factory=dict)
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
    state = {
        rename(name, RULES[source]): torch.as_tensor(value)
        for name, value in entries.items()
        if not DROPPED.search(name)
    }
    state = {name: value for name, value in state.items() if not _SHARED.match(name)}
    _nest_deformable(state)
    if source == "caffe2":
        _add_statistics(state)
    if all(name.startswith("backbone.body.") for name in state):
        return Converted(state, backbone_only=True)
    for needed in _NEEDED:
        # the heads of a cascade are numbered
        if needed not in state and needed.replace("box.", "box.0.") not in state:
            raise ValueError(
                f"looks like {source}'s, but is no R-CNN on a ResNet that we have: no {needed}"
            )
    if source in _BACKGROUND_LAST:
        _background_first(state)
        _ratios_slowest(state)
    settings = settings_for(state, source)
    num_classes = settings["MODEL.ROI_BOX_HEAD.NUM_CLASSES"]
    keypoints = any(name.startswith("roi_heads.keypoint.") for name in state)
    return Converted(state, settings, categories_for(num_classes, keypoints))


def to_torchvision(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our state dict as torchvision's Faster or Mask R-CNN with a ResNet-FPN loads it, strictly.

    Raises:
        ValueError: a model that torchvision does not have.
    """
    needed = ["backbone.neck.output.0.0.weight", "roi_heads.box.feature_extractor.fc6.weight"]
    for name in needed:
        if name not in state:
            raise ValueError(
                "torchvision has R-CNNs on a feature pyramid with a 2-MLP head only; this model "
                f"has no {name}"
            )
    renamed = {rename(name, TO_TORCHVISION): value for name, value in state.items()}
    convs = {name.split(".")[2] for name in renamed if re.match(r"roi_heads\.box_head\.\d", name)}
    if convs:  # a sequence: the convolutions, a flattening, the fully connected layer
        place = f"roi_heads.box_head.{len(convs) + 1}."
        renamed = {n.replace("roi_heads.box_head.fc6.", place): v for n, v in renamed.items()}
    return renamed


_NEEDED = (
    "backbone.body.stem.conv1.weight",
    "backbone.body.res2.0.conv2.weight",
    "rpn.head.cls_logits.weight",
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
    for layer, values in (("cls_logits", 1), ("bbox_pred", 4)):
        for leaf in ("weight", "bias"):
            name = f"rpn.head.{layer}.{leaf}"
            anchors = state[name].unflatten(0, (-1, ratios, values))
            state[name] = anchors.transpose(0, 1).flatten(0, 2)


def _add_statistics(state: dict[str, Tensor]) -> None:
    """Caffe2 folded batch statistics into the scales: what is left are mean 0 and variance 1."""
    for name, value in list(state.items()):
        layer, _, leaf = name.rpartition(".")
        norm = re.search(r"\.(norm\d|downsample\.1)$", layer)
        if norm and leaf == "weight":
            state[f"{layer}.running_mean"] = torch.zeros_like(value)
            state[f"{layer}.running_var"] = torch.ones_like(value)
