"""The contents of checkpoints.

A checkpoint is a dict that `torch.load(weights_only=True)` reads: the state dict under "model", and
the fields in `FIELDS`.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from detlite.errors import DamagedCheckpointError, one_line

_MAX_REPEATED = 1 << 24  # values of a tensor that are more than its bytes, by strides of 0
_MAX_MEMBERS = 1000  # of a list in a category, such as the names of its keypoints
FIELDS = ("categories", "config", "convention", "override", "backbone_only", "training")
TIMM_PREFIX = "backbone.body.net."  # of the names of a timm backbone in a detector


@dataclass(frozen=True)
class Checkpoint:
    """Weights and facts about their model. Unknown fields are empty.

    Attributes:
        path: the file.
        model: the state dict, on the CPU.
        categories: COCO's {"id", "name"}; label k is categories[k - 1].
        config: YAML text of the config of the model.
        convention: name of the convention the model was trained with.
        override: value of MODEL.CONVENTION_OVERRIDE; an unknown field has the value "?".
        backbone_only: the weights of a classifier, which a detector uses as backbone.
        training: the state of the trainer, to resume from.
        timm_backbone: the weights of a classifier renamed for a timm backbone.
        source: the other framework that wrote the file.
        stated: keys of `config` that its file states; the others follow from shapes and defaults.
        prefix: what was removed from the names of the weights.
    """

    path: Path
    model: dict[str, Tensor]
    categories: list[dict[str, Any]] = field(default_factory=list)
    config: str = ""
    convention: str = ""
    override: list[str] = field(default_factory=list)
    backbone_only: bool = False
    training: dict[str, Any] = field(default_factory=dict)
    timm_backbone: dict[str, Tensor] = field(default_factory=dict)
    source: str = ""
    stated: frozenset[str] = frozenset()
    prefix: str = ""


def is_own(content: Any) -> bool:
    """Return True for the content of a file that `save_checkpoint` wrote."""
    return (
        isinstance(content, dict)
        and {"categories", "convention"} <= content.keys()
        and isinstance(content.get("model"), dict)
    )


def as_tensors(arrays: Mapping[str, Any]) -> dict[str, Tensor]:
    """Convert tensors or arrays to tensors; ValueError for others."""
    state = {}
    for name, value in arrays.items():
        if isinstance(value, (np.ndarray, np.generic, int, float)):
            with suppress(TypeError, ValueError, RuntimeError):
                value = torch.tensor(value)  # a copy, because arrays of a pickle can share memory
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise ValueError(f"{name} is neither a tensor nor an array of numbers")
        size = value.untyped_storage().nbytes()
        if value.numel() > max(size, _MAX_REPEATED):
            raise ValueError(
                f"{name} repeats its values: it has the shape {list(value.shape)}, but {size} bytes"
            )
        state[name] = value
    return state


def read_fields(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the fields of `Checkpoint` that have the right type; others belong to a foreign file.

    DamagedCheckpointError if all fields are there, but one has a wrong type.
    """
    defaults = Checkpoint(path, {})
    valid = {
        name: content[name]
        for name in FIELDS
        if isinstance(content.get(name), type(getattr(defaults, name)))
    }
    with suppress(ValueError, KeyError):
        valid["categories"] = read_categories(valid.pop("categories"))
    if not all(isinstance(item, str) for item in valid.get("override", ())):
        del valid["override"]
    invalid = [name for name in FIELDS if name not in valid]
    if invalid and content.keys() >= set(FIELDS):
        raise DamagedCheckpointError(f"{path}: is damaged: its {invalid[0]!r} has a wrong type")
    return valid


def read_categories(rows: Sequence[Any]) -> list[dict[str, Any]]:
    """Return categories with printable names, which become part of configs, files and messages.

    Rows {"id", "name"} may have other members: texts, numbers and lists of them, such as the names
    of keypoints. ValueError for others, and for equal ids.
    """
    categories = [_read_category(row) for row in rows]
    if len({row["id"] for row in categories}) < len(categories):
        raise ValueError("two categories have the same id")
    return categories


def _read_category(row: Any) -> dict[str, Any]:
    def printable(value: Any, depth: int = 0) -> Any:
        if isinstance(value, str):
            return one_line(value)
        # Skeletons are lists of pairs.
        if isinstance(value, (list, tuple)) and depth < 2 and len(value) <= _MAX_MEMBERS:
            return [printable(item, depth + 1) for item in value]
        if value is None or isinstance(value, (int, float)):
            return value
        raise ValueError(f"invalid category: it has a {type(value).__name__}")

    known = isinstance(row, dict) and isinstance(row.get("name"), str)
    if not known or type(row.get("id")) is not int or abs(row["id"]) >= 1 << 63:
        raise ValueError("invalid category: it needs an integer id and a name")
    return {str(key): printable(value) for key, value in row.items()}
