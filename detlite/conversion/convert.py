"""Convert checkpoints of other frameworks to detlite's format."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml
from torch import Tensor

from .categories import categories_from_names, guess_categories
from .checkpoint_source import CheckpointSource, StateDict
from .detectron2.source import DETECTRON2
from .maskrcnn_benchmark import CAFFE2, MASKRCNN_BENCHMARK
from .mmdetection.source import MMDETECTION
from .timm import EFFICIENTNET, TIMM
from .torchvision import TORCHVISION

# In order of recognition.
SOURCES: dict[str, CheckpointSource] = {
    source.name: source
    for source in (
        MMDETECTION, TORCHVISION, DETECTRON2, MASKRCNN_BENCHMARK, CAFFE2, EFFICIENTNET, TIMM,
    )
}  # fmt: skip

_MAX_DEPTH = 8  # of containers in a file
_NESTED = (dict, list, tuple)
# Prefixes that training code adds to a state dict, and copies, which are used only if there is
# nothing else.
_WRAPPERS = re.compile(
    r"((model|module|net(work)?|(model_)?(state|state_dict|weights)|params|blobs|checkpoint"
    r"|_forward_module|detector)\.)*"
)
# Wrappers that may surround any module: torch.compile, activation checkpointing and FSDP.
_INNER = re.compile(r"\b(_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)\.")
_COPY = re.compile(r"ema|average|swa|teacher|shadow|best|old", re.IGNORECASE)
_NOT_WEIGHTS = re.compile(r"optim|sched|scaler|callback|message_hub|^rng|^training$", re.IGNORECASE)
_COUNTER = "n_averaged"  # of an average of models
_MIN_FRACTION = 0.2  # of all arrays in a file must belong to the detector


class FoundStateDict(NamedTuple):
    """A state dict in a file.

    Attributes:
        state: tensors or arrays by name, without the prefixes that training code added.
        container: the dict that has the state dict as a value, and other entries next to it.
        prefix: what was removed from the names, such as "state_dict.model.".
        others: first parts of the names of other arrays in the file.
    """

    state: dict[str, Any]
    container: dict[str, Any]
    prefix: str = ""
    others: tuple[str, ...] = ()


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


def detect_source(content: Any) -> str | None:
    """Return the key in SOURCES of the framework that wrote a file; None: detlite, or unknown."""
    return _source_of(unwrap(content).state)


def _source_of(names: Collection[str]) -> str | None:
    return next((name for name, source in SOURCES.items() if source.recognizes(names)), None)


def convert(content: Any, name: str, path: Path = Path()) -> Checkpoint:
    """Convert the content of a checkpoint.

    Args:
        content: see `unwrap`.
        name: the framework, a key of SOURCES. Plain ResNets of timm have torchvision's names and
            are converted like those.
        path: the file; some published models are recognised by its name or its content.

    Raises:
        ValueError: the content has no state dict of this framework, or detlite lacks the model.
    """
    raw, container, *_ = unwrap(content)
    if not raw:
        raise ValueError("contains no state dict: names and tensors or arrays")
    plain_resnet = name == "timm" and TORCHVISION.recognizes(raw)
    source = TORCHVISION if plain_resnet else SOURCES[name]
    state = _number_levels_from_zero(source.adapt(as_tensors(source.rename(raw)), raw))
    if all(key.startswith("backbone.body.") for key in state):
        return Checkpoint(path, state, backbone_only=True)
    try:
        assumed, stated = source.configure(state, raw, path, container)
    except ValueError as error:
        raise ValueError(f"looks like {source.name}'s, but {error}") from error
    config = assumed | stated
    if config:
        config["MODEL.CONVENTION"] = source.convention
    override = config.pop("MODEL.CONVENTION_OVERRIDE", [])
    # FBNets have no config.
    num_classes = len(state.get("roi_heads.box.predictor.cls_score.weight", ()))
    for section in ("ROI_BOX_HEAD", "RETINANET"):
        num_classes = config.get(f"MODEL.{section}.NUM_CLASSES", num_classes)
    names = source.class_names(container)
    if len(names) == num_classes - 1:
        categories = categories_from_names(names)
    else:
        categories = guess_categories(num_classes, config.get("MODEL.KEYPOINT_ON", False))
    return Checkpoint(
        path, state, categories, yaml.safe_dump(config) if config else "", source.convention,
        override, source=name, stated=frozenset(stated),
    )  # fmt: skip


def unwrap(content: Any) -> FoundStateDict:
    """Find the state dict in a file, in nested dicts and with prefixes in its names.

    Nested dicts and prefixes are treated alike: names are joined by dots. The result has the
    shortest prefix that leaves the names of a detector or a known classifier. Copies, such as
    moving averages, are used only if there is nothing else. If no names are known, the usual
    wrappers are removed.
    """
    content = _as_dict(content)
    if not isinstance(content, dict):
        return FoundStateDict({}, {})
    if {"categories", "convention"} <= content.keys() and isinstance(content.get("model"), dict):
        return FoundStateDict(content["model"], content)  # a checkpoint of detlite
    found = list(_arrays(content, "", content, 0))
    groups: dict[str, list[str]] = {}  # prefix -> rests of the names
    for name, _, _ in found:
        for dot in re.finditer(r"^|\.", name):
            groups.setdefault(name[: dot.end()], []).append(name[dot.end() :])
    large = [p for p, rests in groups.items() if len(rests) >= _MIN_FRACTION * len(found)]
    large.sort(key=lambda prefix: (bool(_COPY.search(prefix)), prefix.count(".")))
    known = (p for p in large if _is_detlite_model(groups[p]) or _source_of(groups[p]))
    prefix = next(known, None)
    if prefix is None:  # the usual wrappers that all names share
        count = sum(name != _COUNTER for name, _, _ in found)
        shared = (p for p in groups if len(groups[p]) >= count and _WRAPPERS.fullmatch(p))
        prefix = max(shared, key=len, default="")
    members = [row for row in found if row[0].startswith(prefix)]
    others = {name.split(".")[0] for name, _, _ in found if not name.startswith(prefix)}
    return FoundStateDict(
        {name[len(prefix) :]: value for name, value, _ in members},
        members[0][2] if members else content,
        prefix,
        tuple(sorted(others - {_COUNTER})),
    )


def _arrays(
    node: dict[Any, Any], prefix: str, parent: dict[str, Any], depth: int
) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield (name, array, parent of its dict) of all arrays in nested dicts."""
    for key, value in node.items():
        if not isinstance(key, str):
            continue
        value = _as_dict(value)
        if isinstance(value, (Tensor, np.ndarray)):
            yield _INNER.sub("", prefix + key), value, parent
        elif isinstance(value, dict) and depth < _MAX_DEPTH and not _NOT_WEIGHTS.search(key):
            yield from _arrays(value, f"{prefix}{key}.", node, depth + 1)


def _as_dict(value: Any) -> Any:
    """Return a list or tuple as the dict of its containers; other values are unchanged."""
    if not isinstance(value, _NESTED[1:]):
        return value
    return {str(index): item for index, item in enumerate(value) if isinstance(item, _NESTED)}


def _is_detlite_model(names: Collection[str]) -> bool:
    parts = {name.split(".")[0] for name in names}
    return "backbone" in parts and (
        not parts.isdisjoint(("rpn", "roi_heads", "head"))
        or any(name.startswith("backbone.body.") for name in names)
    )


def as_tensors(arrays: Mapping[str, Any]) -> StateDict:
    """Convert tensors or arrays to tensors; ValueError for an array that is not numeric."""
    state = {}
    for name, value in arrays.items():
        try:
            state[name] = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{name} is neither a tensor nor an array of numbers") from error
    return state


def _number_levels_from_zero(state: StateDict) -> StateDict:
    """Renumber the pyramid levels so that the finest one, P2 or P3, is number 0."""
    level = re.compile(r"^(backbone\.neck\.(?:lateral|output)\.)(\d+)")
    first = min((int(match[2]) for match in map(level.match, state) if match), default=0)
    return {
        level.sub(lambda match: f"{match[1]}{int(match[2]) - first}", name): value
        for name, value in state.items()
    }
