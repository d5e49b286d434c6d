"""Convert checkpoints of other frameworks to detlite's format."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .caffe2 import CAFFE2
from .categories import categories_from_names, guess_categories
from .checkpoint_source import CheckpointSource, ConfigValues, StateDict
from .detectron2.source import DETECTRON2
from .efficientnet import EFFICIENTNET
from .maskrcnn_benchmark import MASKRCNN_BENCHMARK
from .mmdetection.source import MMDETECTION
from .timm import TIMM
from .torchvision import TORCHVISION

# In order of recognition.
SOURCES: dict[str, CheckpointSource] = {
    source.name: source
    for source in (
        MMDETECTION, TORCHVISION, DETECTRON2, MASKRCNN_BENCHMARK, CAFFE2, EFFICIENTNET, TIMM,
    )
}  # fmt: skip


@dataclass(frozen=True)
class ConvertedCheckpoint:
    """Values of a `checkpoint.files.Checkpoint`; `config` holds keys and values.

    It is empty for a classifier, and if the file does not determine it.
    """

    model: StateDict
    config: ConfigValues = field(default_factory=dict)
    convention: str = ""
    categories: list[dict[str, Any]] = field(default_factory=list)
    backbone_only: bool = False


def detect_source(content: Any) -> str | None:
    """Return the key in SOURCES of the framework that wrote a file; None: detlite, or unknown."""
    raw = find_state_dict(content)
    return next((name for name, source in SOURCES.items() if source.recognise(raw)), None)


def convert(content: Any, name: str, path: Path = Path()) -> ConvertedCheckpoint:
    """Convert the content of a checkpoint.

    Args:
        content: see `find_state_dict`.
        name: the framework, a key of SOURCES. Plain ResNets of timm have torchvision's names and
            are converted like those.
        path: the published path of the file, from which some models are recognised.

    Raises:
        ValueError: the content has no state dict of this framework, or detlite lacks the model.
    """
    raw = find_state_dict(content)
    if not raw:
        raise ValueError("holds no state dict: names and tensors or arrays")
    plain_resnet = name == "timm" and TORCHVISION.recognise(raw)
    source = TORCHVISION if plain_resnet else SOURCES[name]
    state = {key: _as_tensor(key, value) for key, value in source.rename(raw).items()}
    state = source.adapt(state, raw)
    if all(key.startswith("backbone.body.") for key in state):
        return ConvertedCheckpoint(state, backbone_only=True)
    try:
        config = source.configure(state, raw, path, content)
    except ValueError as error:
        raise ValueError(f"looks like {source.name}'s, but {error}") from error
    if config:
        config["MODEL.CONVENTION"] = source.convention
    categories = _categories(state, config, source.class_names(content))
    return ConvertedCheckpoint(state, config, source.convention, categories)


def find_state_dict(content: Any) -> dict[str, Any]:
    """Return the tensors or arrays of the state dict in a file, or empty if it has none.

    The content of the file is the state dict, or has it under "model", "state_dict" or "blobs".
    """
    for key in ("model", "blobs", "state_dict"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict):
        return {}
    # Detectron also stores its format among the arrays.
    arrays = {name: value for name, value in content.items() if hasattr(value, "shape")}
    if not all(isinstance(name, str) for name in arrays):
        return {}
    return {name.removeprefix("module."): value for name, value in arrays.items()}


def _as_tensor(name: str, value: Any) -> Tensor:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} is neither a tensor nor an array of numbers") from error


def _categories(
    state: StateDict, config: ConfigValues, names: Sequence[str]
) -> list[dict[str, Any]]:
    # FBNets have no config.
    num_classes = len(state.get("roi_heads.box.predictor.cls_score.weight", ()))
    for section in ("ROI_BOX_HEAD", "RETINANET"):
        num_classes = config.get(f"MODEL.{section}.NUM_CLASSES", num_classes)
    if len(names) == num_classes - 1:
        return categories_from_names(names)
    return guess_categories(num_classes, config.get("MODEL.KEYPOINT_ON", False))
