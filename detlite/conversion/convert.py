"""Convert checkpoints of other frameworks to detlite's format."""

import logging
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from torch import Tensor

from detlite.checkpoint.contents import TIMM_PREFIX, Checkpoint, as_tensors, is_own, read_fields

from .categories import categories_from_names, guess_categories
from .checkpoint_source import RawStateDict, StateDict
from .detectron2.source import DETECTRON2
from .maskrcnn_benchmark import CAFFE2, MASKRCNN_BENCHMARK
from .mmdetection.source import MMDETECTION
from .timm import EFFICIENTNET, TIMM
from .torchvision import TORCHVISION

logger = logging.getLogger(__name__)

# Frameworks in order of recognition.
SOURCES = {
    "mmdetection": MMDETECTION, "torchvision": TORCHVISION, "detectron2": DETECTRON2,
    "maskrcnn-benchmark": MASKRCNN_BENCHMARK, "caffe2": CAFFE2,
    "efficientnet-pytorch": EFFICIENTNET, "timm": TIMM,
}  # fmt: skip

_MAX_DEPTH = 8  # of containers in a file
_MAX_PREFIXES = 16  # of a name; a small file may have names with 100,000 dots
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


def convert(content: Any, source: str | None = None, path: Path = Path()) -> Checkpoint:
    """Convert the content of a file that detlite did not write, or that has a state dict only.

    Args:
        content: see `unwrap`.
        source: the framework, a name in SOURCES; None: recognized by the names of the weights.
            Plain ResNets of timm have torchvision's names and are converted like those.
        path: the file; some published models are recognised by its name or its content.

    Raises:
        ValueError: the content has no state dict of this framework, or detlite lacks the model.
    """
    raw, container, prefix, others = unwrap(content)
    if prefix.count(".") > 1 or others:
        unused = f"; not used: {', '.join(others)}" if others else ""
        logger.info("%s: uses the weights %s*%s", path, prefix, unused)
    recognized = recognize(raw)
    if source is None or (source, recognized) == ("timm", "torchvision"):
        source = recognized
    if source is None:
        fields = read_fields(container, path)
        checkpoint = Checkpoint(path, as_tensors(raw), prefix=prefix, **fields)
    elif raw:
        checkpoint = _convert(raw, container, source, path)
        logger.info("%s: converted from %s", path, source)
    else:
        raise ValueError("contains no state dict: names and tensors or arrays")
    is_classifier = not any(name.startswith("backbone.") for name in raw)
    is_renamed = any(name.startswith(TIMM_PREFIX) for name in checkpoint.model)
    if is_renamed or not is_classifier or not all(isinstance(v, Tensor) for v in raw.values()):
        return checkpoint
    # The names of a classifier for a timm backbone.
    return replace(checkpoint, timm_backbone={TIMM_PREFIX + name: raw[name] for name in raw})


def _convert(raw: RawStateDict, container: dict[str, Any], name: str, path: Path) -> Checkpoint:
    """Convert a state dict of the framework `name`; `container` has the entries next to it."""
    source = SOURCES[name]
    state = _number_levels_from_zero(source.adapt(as_tensors(source.rename(raw)), raw))
    if all(key.startswith("backbone.body.") for key in state):
        return Checkpoint(path, state, backbone_only=True, source=name)
    try:
        assumed, stated = source.configure(state, raw, path, container)
    except ValueError as error:
        raise ValueError(f"looks like {name}'s, but {error}") from error
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


def recognize(names: Iterable[str]) -> str | None:
    """Return the framework, a name in SOURCES, of a file with these weight names; None: unknown."""
    text, flags = "\n".join(sorted(names)), re.MULTILINE | re.DOTALL
    matches = (name for name, source in SOURCES.items() if re.search(source.names, text, flags))
    return next(matches, None)


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
    if is_own(content):
        return FoundStateDict(content["model"], content)
    found = list(_arrays(content, "", content, 0, set()))
    groups: dict[str, list[str]] = {}  # prefix -> rests of the names
    for name, _, _ in found:
        for dot in islice(re.finditer(r"^|\.", name), _MAX_PREFIXES):
            groups.setdefault(name[: dot.end()], []).append(name[dot.end() :])
    large = [p for p, rests in groups.items() if len(rests) >= _MIN_FRACTION * len(found)]
    large.sort(key=lambda prefix: (bool(_COPY.search(prefix)), prefix.count(".")))
    known = (p for p in large if _is_detlite_model(groups[p]) or recognize(groups[p]))
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
    node: dict[Any, Any], prefix: str, parent: dict[str, Any], depth: int, visited: set[int]
) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield (name, array, parent of its dict) of all arrays in nested dicts.

    A container that several others share is visited once: a small file may have 60^8 paths.
    """
    for key, value in node.items():
        if not isinstance(key, str):
            continue
        if isinstance(value, _NESTED):
            if id(value) in visited:
                continue
            visited.add(id(value))
        value = _as_dict(value)
        if isinstance(value, (Tensor, np.ndarray)):
            yield _INNER.sub("", prefix + key), value, parent
        elif isinstance(value, dict) and depth < _MAX_DEPTH and not _NOT_WEIGHTS.search(key):
            yield from _arrays(value, f"{prefix}{key}.", node, depth + 1, visited)


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


def _number_levels_from_zero(state: StateDict) -> StateDict:
    """Renumber the pyramid levels so that the finest one, P2 or P3, is number 0."""
    level = re.compile(r"^(backbone\.neck\.(?:lateral|output)\.)(\d+)")
    first = min((int(match[2]) for match in map(level.match, state) if match), default=0)
    return {
        level.sub(lambda match: f"{match[1]}{int(match[2]) - first}", name): value
        for name, value in state.items()
    }
