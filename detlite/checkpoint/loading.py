"""Load checkpoints into models, or build the model of a checkpoint."""

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from yacs.config import CfgNode

from detlite.checkpoint.class_transfer import CLASS_LAYERS, match_optional_heads, transfer_classes
from detlite.checkpoint.contents import TIMM_PREFIX, Checkpoint
from detlite.checkpoint.files import read_checkpoint
from detlite.checkpoint.stored_config import (
    apply_convention,
    config_of,
    explain_imports,
    warn_of_other_pixels,
)
from detlite.checkpoint.weight_catalog import find_weights
from detlite.config import ConfigError, default_config, expand_path, load_config
from detlite.errors import CheckpointError
from detlite.modeling import build_model
from detlite.modeling.backbone.input_channels import adapt_stems
from detlite.modeling.detection_model import DetectionModel
from detlite.structures.categories import CategoryMatch

logger = logging.getLogger(__name__)

# Entries that classifiers lack: batch counters, and offsets of deformable convolutions.
_NOT_IN_CLASSIFIER = re.compile(r"\.num_batches_tracked$|\.conv2\.offset\.")
# Training state that other frameworks lack: RetinaNet's average number of foreground anchors.
_TRAINING_STATE = "moving_foreground"
_COUNTER = ".num_batches_tracked"
_ANCHOR_LAYER = re.compile(r"(rpn\.)?head\.(cls_logits|bbox_pred)\.")
_UNKNOWN = "unknown to the model"
_MAX_NAME = 200  # characters
_MAX_ROWS = 40  # of a table in a message


def load_weights(
    model: DetectionModel,
    checkpoint: Checkpoint,
    reinit_heads: bool = False,
    training_state: bool = False,
) -> None:
    """Load the weights and categories of a checkpoint into `model`.

    If the checkpoint is a classifier, only its backbone is loaded. If the model and the checkpoint
    have categories with names, their rows are loaded by name, and other categories keep the values
    of the model. With `reinit_heads`, layers of another number of classes, and a mask or keypoint
    head that only the model has, keep their values; a head that only the checkpoint has is skipped.
    Averages that follow the training are loaded only with `training_state`, so that a new
    run starts without them.

    Raises:
        CheckpointError: entries are missing, unexpected, of another shape or not finite. The
            message lists them, and `model` is unchanged.
        ConfigError: the weights were trained with another convention.
    """
    path, convention = checkpoint.path, checkpoint.convention
    if convention not in ("", model.convention.name):
        raise ConfigError(
            f"MODEL.CONVENTION is {model.convention.name}, but the weights in {path} were trained "
            f"with {convention}: build the model with that"
        )
    labels = "the weights", "the model, which are newly initialized"
    categories = CategoryMatch(checkpoint.categories, model.categories, labels)
    found = any(number is not None for number in categories.numbers)
    is_by_name = categories.differ and (reinit_heads or found)

    target = model.state_dict()
    source = _select_entries(target, checkpoint, training_state)
    source |= adapt_stems(source, target, model.normalizer.bgr255)
    _check_values(path, source, target)
    if reinit_heads:
        source = match_optional_heads(source, target, path)
    if is_by_name:
        source |= transfer_classes(source, model, categories)
    differs = [n for n in target if n in source and target[n].shape != source[n].shape]
    by_class = [
        n for n in differs if CLASS_LAYERS.match(n) and target[n].shape[1:] == source[n].shape[1:]
    ]
    fresh = by_class if reinit_heads else []
    problems = sorted(
        [
            *(("missing in the file", name) for name in target.keys() - source),
            *((_UNKNOWN, name) for name in source.keys() - target),
            *(("other shape", name) for name in differs if name not in fresh),
        ]
    )
    if problems:
        fitting = len(target.keys() & source) - len(differs)
        raise CheckpointError(
            f"{path} does not fit the model: {fitting} of {len(target)} entries fit"
            + _hints(problems, by_class, training_state)
            + _table(problems, source, target)
        )
    model.load_state_dict(source | {name: target[name] for name in fresh})
    if fresh:
        listed = ", ".join(fresh)
        logger.warning("%s has other classes; newly initialized layers: %s", path, listed)
    if is_by_name:
        logger.warning("%s has other categories; %s", path, categories)
    elif categories.differ:
        logger.warning(
            "%s has no category of the model by name. Its weights are used in the same order; set "
            "MODEL.REINIT_HEADS True to initialize them instead", path,
        )  # fmt: skip
    if checkpoint.categories and not fresh and not is_by_name:
        model.categories = checkpoint.categories


def _check_values(path: Path, source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, value in source.items():
        is_float = value.is_floating_point()
        if not is_float and name in target and target[name].is_floating_point():
            raise CheckpointError(
                f"{path}: {name} is {value.dtype}, not floating point: quantized weights cannot be "
                "loaded; use the file from before the quantization"
            )
        try:
            is_finite = not is_float or bool(value.float().isfinite().all())
        except NotImplementedError as error:  # a type of packed numbers
            raise CheckpointError(
                f"{path}: {name} is {value.dtype}, which torch cannot convert"
            ) from error
        if not is_finite:
            raise CheckpointError(
                f"{path}: {name} contains NaN or infinity: training diverged, or the file is "
                "damaged; use an earlier checkpoint"
            )


def _hints(
    problems: Sequence[tuple[str, str]], by_class: Sequence[str], training_state: bool
) -> str:
    """Return what entries that do not fit have in common, and what to do."""
    kinds, names = zip(*problems, strict=True)
    advice = "set MODEL.REINIT_HEADS True to load the other layers"
    if training_state:
        advice = "use the config of its training (leave out --config), or the same NUM_CLASSES"
    hints = (
        (len(names) == len(by_class), f"Only the number of classes differs: {advice}"),
        (
            all(map(_ANCHOR_LAYER.match, names)) and "bbox_pred" in " ".join(names),
            "Only the number of anchors per cell differs: set MODEL.RPN.ANCHOR_SIZES and "
            "ASPECT_RATIOS (or those in MODEL.RETINANET) as for the training of the file",
        ),
        (
            all(name.endswith((".running_mean", ".running_var")) for name in names),
            "Only statistics of batch norm are missing on one side: set MODEL.RESNETS.NORM to the "
            "norm of the weights: FrozenBN or BN if the file has statistics",
        ),
        (
            {*kinds} == {_UNKNOWN},
            "The file only has more than the model: if these entries are of a part that you do not "
            "need, remove them from the file",
        ),
    )
    return "".join(f". {hint}" for applies, hint in hints if applies)


def _select_entries(
    target: Mapping[str, Tensor], checkpoint: Checkpoint, training_state: bool
) -> dict[str, Tensor]:
    """Return the entries of a checkpoint to load into a model with the entries `target`."""
    source, backbone_only = checkpoint.model, checkpoint.backbone_only
    prefix = checkpoint.prefix.partition(".")[2]  # a part of it may belong to the model's names
    if target.keys().isdisjoint(source) and any(prefix + name in target for name in source):
        source = {prefix + name: value for name, value in source.items()}
    if checkpoint.timm_backbone and any(name.startswith(TIMM_PREFIX) for name in target):
        source, backbone_only = checkpoint.timm_backbone, True
    if backbone_only:
        source = _add_heads(source, target)
    # Batch counters are dropped if the norm is frozen now, and start at 0 if it was frozen before.
    optional = (_TRAINING_STATE, _COUNTER)
    initial = {
        name: value
        for name, value in target.items()
        if name.endswith(optional)
        and (name == _TRAINING_STATE or name.replace(_COUNTER, ".running_mean") in source)
    }
    kept = {n: value for n, value in source.items() if n in target or not n.endswith(optional)}
    if not training_state:
        kept.pop(_TRAINING_STATE, None)
    return initial | kept


def _add_heads(backbone: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the entries of a classifier's backbone, and the model's values of all other entries.

    Heads that apply the last stage (C4 models) also get it from the backbone.
    """
    entries, used = {}, set()
    for name, value in target.items():
        source = re.sub(r"^roi_heads\.\w+\.feature_extractor\.res5\.", "backbone.body.res5.", name)
        source = source.replace(".conv2.conv.", ".conv2.")  # deformable in the model only
        if source in backbone:
            entries[name] = backbone[source]
            used.add(source)
        elif not name.startswith("backbone.body.") or _NOT_IN_CLASSIFIER.search(name):
            entries[name] = value
    # An unused last stage is dropped, and so are timm's classification layers, which have no common
    # name. Other unused entries mean that this is another backbone.
    unused = {name for name in backbone.keys() - used if not name.startswith(TIMM_PREFIX)}
    return entries | {n: backbone[n] for n in unused if not n.startswith("backbone.body.res5.")}


def weight_file(cfg: CfgNode) -> Path:
    """Return the file of MODEL.WEIGHT, see `weight_catalog.find_weights`."""
    return resolve_checkpoint_path(cfg.MODEL.WEIGHT, ("MODEL.WEIGHT_ROOT", cfg.MODEL.WEIGHT_ROOT))


def read_weights(cfg: CfgNode) -> tuple[CfgNode, Checkpoint | None]:
    """Read the checkpoint in MODEL.WEIGHT, if any, and return it with the config for it."""
    if not cfg.MODEL.WEIGHT:
        return cfg, None
    checkpoint = read_checkpoint(weight_file(cfg))
    warn_of_other_pixels(cfg, checkpoint)
    return apply_convention(cfg, checkpoint), checkpoint


def read_model_checkpoint(
    path: str | Path, opts: Sequence[Any] = (), config: str | Path | None = None
) -> tuple[CfgNode, Checkpoint]:
    """Read a checkpoint and the config of its model: the file `config`, or the stored one."""
    checkpoint = read_checkpoint(resolve_checkpoint_path(path, opts))
    if config:
        return apply_convention(load_config(config, opts), checkpoint), checkpoint
    return config_of(checkpoint, opts), checkpoint


def build_model_from_checkpoint(
    path: str | Path, opts: Sequence[Any] = (), config: str | Path | None = None
) -> tuple[CfgNode, DetectionModel]:
    """Build the model of a checkpoint, in evaluation mode; see `load_checkpoint`.

    If the file is a state dict without categories, they are named "class 1", "class 2", ...
    """
    cfg, checkpoint = read_model_checkpoint(path, opts, config)
    if checkpoint.backbone_only:
        raise CheckpointError(
            f"{checkpoint.path}: has the weights of a backbone only, so the heads would be random: "
            "train a model that starts from it (MODEL.WEIGHT)"
        )
    with explain_imports(checkpoint.config, checkpoint.path, bool(cfg.IMPORTS)):
        return cfg, build_with_weights(cfg, checkpoint).eval()


def build_with_weights(cfg: CfgNode, checkpoint: Checkpoint) -> DetectionModel:
    """Build the model of a config, load its weights, and name its categories.

    Raises:
        ConfigError, CheckpointError: see `build_model` and `load_weights`.
    """
    model = build_model(cfg, checkpoint.path.stat().st_size)
    load_weights(model, checkpoint, training_state=True)
    if model.categories and len(model.categories) != model.num_classes - 1:
        raise CheckpointError(
            f"{checkpoint.path}: names {len(model.categories)} categories, but its model detects "
            f"{model.num_classes - 1}. Correct MODEL.ROI_BOX_HEAD.NUM_CLASSES"
        )
    if not model.categories:
        labels = range(1, model.num_classes)
        model.categories = [{"id": label, "name": f"class {label}"} for label in labels]
    return model


def resolve_checkpoint_path(path: str | Path, opts: Sequence[Any] = ()) -> Path:
    """Return the file of a checkpoint given by path or name; `opts` may set MODEL.WEIGHT_ROOT."""
    if isinstance(path, Path):  # also one that is spelled like a name
        return expand_path(str(path))
    values = dict(zip(opts[::2], opts[1::2], strict=False))
    root = values.get("MODEL.WEIGHT_ROOT", default_config().MODEL.WEIGHT_ROOT)
    return find_weights(path, root)


def _table(problems: Sequence[tuple[str, str]], *states: Mapping[str, Tensor]) -> str:
    """Format problems with the shapes of their entries, at most `_MAX_ROWS`."""
    rows = [("", "entry", "in the file", "in the model")]
    for problem, name in problems[:_MAX_ROWS]:
        file, model = (str(list(state[name].shape)) if name in state else "" for state in states)
        rows.append((problem, name[:_MAX_NAME], file, model))
    width = max(len(row[1]) for row in rows)
    table = "".join(f"\n  {a:20}  {b:{width}}  {c:18}  {d}".rstrip() for a, b, c, d in rows)
    extra = len(problems) - _MAX_ROWS
    return table + (f"\n  ... and {extra} more" if extra > 0 else "")
