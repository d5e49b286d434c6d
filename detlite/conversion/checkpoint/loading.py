"""Checkpoints into models: entries compared one by one, heads made anew, whole models rebuilt."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from yacs.config import CfgNode

from detlite.config import (
    ConfigError,
    config_from,
    default_config,
    expand_path,
    load_config,
    parse_yaml,
)
from detlite.config.checks import convention_fields
from detlite.conventions import CONVENTIONS
from detlite.conversion import find_weights, weight_file
from detlite.conversion.timm import BODY as TIMM_BODY
from detlite.modeling import build_model
from detlite.modeling.detection_model import DetectionModel

from .class_transfer import CLASS_LAYERS, ClassRows, with_same_heads
from .files import Checkpoint, CheckpointError, read_checkpoint

logger = logging.getLogger(__name__)

# What a classifier's body lacks: counters of batches, and the offsets of deformable convolutions.
_FRESH_IN_BODY = re.compile(r"\.num_batches_tracked$|\.conv2\.offset\.")
# RetinaNet's average of foreground anchors, which detectron2 does not save.
_MOVING_AVERAGE = "moving_foreground"
_COUNTER = ".num_batches_tracked"
_STATISTICS = (".running_mean", ".running_var")


def load_weights(model: DetectionModel, checkpoint: Checkpoint, reinit_heads: bool = False) -> None:
    """Loads a checkpoint's weights and categories into `model`.

    Args:
        checkpoint: of a classifier only the body is taken; the rest of `model` stays as it is.
        reinit_heads: where the classes of the file are not those of `model`, by
            `model.categories`, keep these, and take of the layers that have rows of each class
            (scores, box regression, mask logits) the background's and those of categories of the
            same name; the other rows stay as they are in `model`. Without names in the file, or of
            layers that this is not known of, all rows stay if their number differs. A mask or
            keypoint head that only one of the two has is left out, or stays. The log tells.

    Raises:
        CheckpointError: anything is missing, unexpected, of another shape or not finite; the
            message lists it and `model` is unchanged.
        ConfigError: the weights were trained by another convention than the model's.
    """
    if checkpoint.convention not in ("", model.convention.name):
        raise ConfigError(
            f"MODEL.CONVENTION is {model.convention.name}, but the weights in {checkpoint.path} "
            f"follow that of {checkpoint.convention}: build the model by it"
        )
    ours = model.state_dict()
    theirs = _entries_for(ours, checkpoint)
    for name, value in theirs.items():
        if value.is_floating_point() and not value.isfinite().all():
            raise CheckpointError(
                f"{checkpoint.path}: {name} holds NaN or infinity: training diverged, or the file "
                "is damaged; use an earlier checkpoint"
            )
    classes = ClassRows(checkpoint.categories, model.categories)
    if reinit_heads:
        theirs = with_same_heads(theirs, ours, checkpoint.path)
    if reinit_heads and classes.differ:
        heads = (n for n, m in model.named_modules() if getattr(m, "class_agnostic", False))
        alike = {f"{name}.predictor.bbox_pred" for name in heads}
        theirs |= {
            name: classes.taken(name, value, ours)
            for name, value in theirs.items()
            if name.rpartition(".")[0] not in alike
        }
    differs = [name for name in ours if name in theirs and ours[name].shape != theirs[name].shape]
    by_class = [
        n for n in differs if CLASS_LAYERS.match(n) and ours[n].shape[1:] == theirs[n].shape[1:]
    ]
    fresh = by_class if reinit_heads else []
    problems = [
        *(("missing in the file", name) for name in ours.keys() - theirs),
        *(("unknown to the model", name) for name in theirs.keys() - ours),
        *(("other shape", name) for name in differs if name not in fresh),
    ]
    if problems:
        fitted = len(ours.keys() & theirs) - len(differs)
        message = (
            f"{checkpoint.path} does not fit the model: {fitted} of its {len(ours)} entries do"
        )
        if len(problems) == len(by_class):
            message += (
                ". Only the number of classes differs: MODEL.REINIT_HEADS True takes the rest, and "
                "of these the rows of categories of the same name"
            )
        if all(name.endswith(_STATISTICS) for _, name in problems):
            message += (
                ". Only statistics of batch norm differ: the weights have it where the model has "
                "not, or the other way round; MODEL.RESNETS.NORM says which norm a ResNet has, "
                "FrozenBN or BN for such weights"
            )
        raise CheckpointError(f"{message}\n{_table(sorted(problems), theirs, ours)}")
    model.load_state_dict({**theirs, **{name: ours[name] for name in fresh}})
    if classes.differ and not reinit_heads:
        logger.warning(
            "%s was trained on other categories, whose rows now stand for the model's, one by one "
            "in order: MODEL.REINIT_HEADS True takes them by name", checkpoint.path,
        )  # fmt: skip
    if fresh:
        logger.warning(
            "%s has other classes; layers initialised anew: %s", checkpoint.path, ", ".join(fresh)
        )
    if reinit_heads and classes.differ:
        logger.warning("%s has other categories; %s", checkpoint.path, classes)
    elif checkpoint.categories and not fresh:
        model.categories = checkpoint.categories


def _entries_for(ours: Mapping[str, Tensor], checkpoint: Checkpoint) -> dict[str, Tensor]:
    """A checkpoint's entries for a model that has the entries `ours`."""
    theirs, backbone_only = checkpoint.model, checkpoint.backbone_only
    if checkpoint.timm_body and any(name.startswith(TIMM_BODY) for name in ours):
        theirs, backbone_only = checkpoint.timm_body, True
    if backbone_only:
        theirs = _with_fresh_heads(theirs, ours)
    if _MOVING_AVERAGE in ours:
        theirs = {_MOVING_AVERAGE: ours[_MOVING_AVERAGE], **theirs}
    # Counters of batches are left out where the norm is frozen, and start where it was.
    counters = {
        name: value
        for name, value in ours.items()
        if name.endswith(_COUNTER) and name.removesuffix(_COUNTER) + ".running_mean" in theirs
    }
    kept = {n: value for n, value in theirs.items() if n in ours or not n.endswith(_COUNTER)}
    return counters | kept


def _with_fresh_heads(body: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A classifier's body, also for heads that apply its last stage; all else from `ours`."""
    filled, used = {}, set()
    for name, value in ours.items():
        source = re.sub(r"^roi_heads\.\w+\.feature_extractor\.res5\.", "backbone.body.res5.", name)
        source = source.replace(".conv2.conv.", ".conv2.")  # deformable here, plain there
        if source in body:
            filled[name] = body[source]
            used.add(source)
        elif not name.startswith("backbone.body.") or _FRESH_IN_BODY.search(name):
            filled[name] = value
    # Without a user the last stage is left out, and of timm's the classifying layers, however each
    # of its models calls them; anything else shows that this is another body.
    unused = {name for name in body.keys() - used if not name.startswith(TIMM_BODY)}
    return filled | {n: body[n] for n in unused if not n.startswith("backbone.body.res5.")}


def read_weights(cfg: CfgNode) -> tuple[CfgNode, Checkpoint | None]:
    """The config with the convention of the checkpoint that MODEL.WEIGHT names, and that, if any.

    Raises:
        CheckpointError: a file that cannot be read, or weights of a convention that is not known.
        ConfigError: a name without its file, or another convention than that of the weights.
    """
    if not cfg.MODEL.WEIGHT:
        return cfg, None
    checkpoint = read_checkpoint(weight_file(cfg))
    return with_convention(cfg, checkpoint), checkpoint


def with_convention(cfg: CfgNode, checkpoint: Checkpoint) -> CfgNode:
    """A config with the convention of weights; fields that it overrides go before theirs.

    Raises:
        CheckpointError: weights of a convention that is not known.
        ConfigError: another convention than that of the weights.
    """
    path, convention = checkpoint.path, checkpoint.convention
    if not convention:
        return cfg
    if convention not in CONVENTIONS:
        raise CheckpointError(
            f"{path}: follows the convention {convention!r}, but there are {', '.join(CONVENTIONS)}"
        )
    if wanted := convention_fields(checkpoint.override):
        raise CheckpointError(f"{path}: its override must be {wanted}")
    if cfg.MODEL.CONVENTION not in ("", convention):
        raise ConfigError(
            f"MODEL.CONVENTION is {cfg.MODEL.CONVENTION}, but the weights in {path} follow that of "
            f"{convention}: remove the key, and replace single fields by MODEL.CONVENTION_OVERRIDE"
        )
    cfg = cfg.clone()
    cfg.defrost()
    cfg.MODEL.CONVENTION = convention
    if not cfg.MODEL.CONVENTION_OVERRIDE:
        cfg.MODEL.CONVENTION_OVERRIDE = tuple(checkpoint.override)
    cfg.freeze()
    return cfg


def read_model_checkpoint(
    path: str | Path, opts: Sequence[Any] = (), config: str | Path | None = None
) -> tuple[CfgNode, Checkpoint]:
    """A checkpoint, and the config of the model that it is of: the file `config`, or its own.

    Raises:
        CheckpointError: a file that is no checkpoint, or that has no config.
        ConfigError: an override in `opts` that cannot be used, or another convention than that of
            the weights.
    """
    checkpoint = read_checkpoint(file_of(path, opts))
    cfg = load_config(config, opts) if config else _stored_config(checkpoint, opts)
    return with_convention(cfg, checkpoint), checkpoint


def build_model_from_checkpoint(
    path: str | Path, opts: Sequence[Any] = (), config: str | Path | None = None
) -> tuple[CfgNode, DetectionModel]:
    """The config and the model, in evaluation mode, of a checkpoint; see `load_checkpoint`."""
    cfg, checkpoint = read_model_checkpoint(path, opts, config)
    model = build_model(cfg)
    load_weights(model, checkpoint)
    return cfg, model.eval()


def file_of(path: str | Path, opts: Sequence[Any] = ()) -> Path:
    """The file of a checkpoint, which may be given by name; `opts` may state MODEL.WEIGHT_ROOT."""
    if isinstance(path, Path) or "://" not in path:
        return expand_path(str(path))
    given = dict(zip(opts[::2], opts[1::2], strict=False))
    return find_weights(path, given.get("MODEL.WEIGHT_ROOT", default_config().MODEL.WEIGHT_ROOT))


def _stored_config(checkpoint: Checkpoint, opts: Sequence[Any]) -> CfgNode:
    path, config = checkpoint.path, config_of(checkpoint)
    if config is None:
        raise CheckpointError(
            f"{path}: has no config, so it does not say which model it is: name the YAML file "
            "that it was built from as well (`config`, or --config)"
        )
    # Weights must not run code: what a model needs imported is named by who loads it.
    config.pop("IMPORTS", None)
    return config_from(config, path, opts)


def config_of(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """The keys and values that a checkpoint states, or None where it has no config.

    Raises:
        CheckpointError: what it has is not YAML.
    """
    try:
        config = parse_yaml(checkpoint.config, checkpoint.path)
    except ConfigError as error:
        raise CheckpointError(f"the config in {error}") from error
    return config if isinstance(config, dict) else None


def _table(problems: Sequence[tuple[str, str]], *states: Mapping[str, Tensor]) -> str:
    """Aligned rows: a problem, an entry and its shapes in both states; of very many, the first."""
    rows = [["", "entry", "in the file", "in the model"]]
    for problem, name in problems[:40]:
        shapes = [str(list(state[name].shape)) if name in state else "" for state in states]
        rows.append([problem, name, *shapes])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "".join(f"  {cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    if len(problems) > 40:
        lines.append(f"  ... and {len(problems) - 40} more")
    return "\n".join(lines)
