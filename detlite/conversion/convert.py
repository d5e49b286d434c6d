"""Files of other frameworks as ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .caffe2 import CAFFE2
from .categories import categories_by_name, categories_for
from .checkpoint_source import Config, Source, State
from .detectron2.source import DETECTRON2
from .efficientnet import EFFICIENTNET
from .maskrcnn_benchmark import MASKRCNN_BENCHMARK
from .mmdetection.source import MMDETECTION
from .timm import TIMM
from .torchvision import TORCHVISION

_ALL = (
    MMDETECTION,
    TORCHVISION,
    DETECTRON2,
    MASKRCNN_BENCHMARK,
    CAFFE2,
    EFFICIENTNET,
    TIMM,
)
SOURCES: dict[str, Source] = {source.name: source for source in _ALL}


@dataclass(frozen=True)
class Converted:
    """A converted file.

    Attributes:
        model: the state dict by our names.
        config: config keys and values that these weights need, among them MODEL.CONVENTION; empty
            for a classifier, and where the shapes do not say them.
        convention: the name of the convention that a detector was trained by.
        categories: the categories {"id", "name"} of labels 1, 2, ...
        backbone_only: whether it is an ImageNet classifier, of which the body is used.
    """

    model: State
    config: Config = field(default_factory=dict)
    convention: str = ""
    categories: list[dict[str, Any]] = field(default_factory=list)
    backbone_only: bool = False


def source_of(content: Any) -> str | None:
    """Which of SOURCES a file's content comes from; None: ours, or unknown."""
    entries = entries_of(content)
    return next((name for name, source in SOURCES.items() if source.recognise(entries)), None)


def convert(content: Any, name: str, path: Path = Path()) -> Converted:
    """Converts what a file of another framework holds.

    Args:
        content: the file's dict: a state dict of tensors or arrays, or one under `model`
            (`blobs` in Caffe2's).
        name: whose it is, a key of SOURCES. Of timm, plain ResNets are converted as torchvision's,
            whose names they have.
        path: where it was published, as far as it is known: its name may say more.

    Raises:
        ValueError: no state dict of that source, or a model that we do not have.
    """
    entries = entries_of(content)
    if not entries:
        raise ValueError("holds no state dict: names and tensors or arrays")
    plain_resnet = name == "timm" and TORCHVISION.recognise(entries)
    source = TORCHVISION if plain_resnet else SOURCES[name]
    state = {ours: _tensor(ours, value) for ours, value in source.rename(entries).items()}
    state = source.adapt(state, entries)
    if all(ours.startswith("backbone.body.") for ours in state):
        return Converted(state, backbone_only=True)
    try:
        config = source.configure(state, entries, path, content)
    except ValueError as error:
        raise ValueError(f"looks like {source.name}'s, but {error}") from error
    if config:
        config["MODEL.CONVENTION"] = source.convention
    return Converted(
        state, config, source.convention, _categories(state, config, source.class_names(content))
    )


def entries_of(content: Any) -> dict[str, Any]:
    """The tensors or arrays of the state dict in a file's content; empty where there is none."""
    for key in ("model", "blobs", "state_dict"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict):
        return {}
    # Detectron's files note their format among the arrays.
    arrays = {name: value for name, value in content.items() if hasattr(value, "shape")}
    if not all(isinstance(name, str) for name in arrays):
        return {}
    return {name.removeprefix("module."): value for name, value in arrays.items()}


def _tensor(name: str, value: Any) -> Tensor:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} is no tensor, nor an array of numbers") from error


def _categories(state: State, config: Config, names: Sequence[str]) -> list[dict[str, Any]]:
    # Without a config, an FBNet's.
    num_classes = len(state.get("roi_heads.box.predictor.cls_score.weight", ()))
    for part in ("ROI_BOX_HEAD", "RETINANET"):
        num_classes = config.get(f"MODEL.{part}.NUM_CLASSES", num_classes)
    if len(names) == num_classes - 1:
        return categories_by_name(names)
    return categories_for(num_classes, config.get("MODEL.KEYPOINT_ON", False))
