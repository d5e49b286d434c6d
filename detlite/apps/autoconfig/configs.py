"""Configs of runs without a config file, from the rules or from a checkpoint and the rules."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from detlite.api import CONFIG_BUILDERS
from detlite.apps.doctor import resources
from detlite.config import ConfigError, config_from, load_config
from detlite.config.loading import flatten
from detlite.conversion.checkpoint.files import Checkpoint, read_checkpoint
from detlite.conversion.checkpoint.loading import resolve_checkpoint_path
from detlite.conversion.checkpoint.stored_config import (
    apply_convention,
    checkpoint_config,
    log_assumptions,
)
from detlite.conversion.weight_catalog import COCO, coco_weights
from detlite.data.datasets.catalog import locate_dataset
from detlite.data.images.reading import build_image_options
from detlite.distributed import all_gather_objects, is_main, world_size

from . import step_timing
from .dataset_facts import Choice, DatasetFacts, Values
from .rules import TRAINING_RULES, choose
from .statistics import DatasetStatistics, compute_statistics
from .time_budget import fit_to_minutes

ConfigTimer = Callable[[CfgNode], float]  # returns the seconds of a training step

_logger = logging.getLogger(__name__)
_SOURCE = Path("the config for these data")  # in error messages
_Derived = tuple[CfgNode, list[Choice]]
# Training batch norm on batches of 4 and 8 images lowered AP (docs/recipes.md).
_MIN_NORM_IMAGES = 16
_IMAGENET_STD = 0.226  # of RGB in 0..1
_MODEL_SECTIONS = ("MODEL.", "INPUT.")  # taken from a checkpoint


def as_config(facts: DatasetFacts, choices: Sequence[Choice], opts: Sequence[Any] = ()) -> CfgNode:
    """Return the config of a file with these choices, with overrides `KEY, VALUE, ...`."""
    return config_from(_values(choices), _SOURCE, opts, facts.base)


def config_by_data(facts: DatasetFacts, opts: Sequence[Any], timer: ConfigTimer) -> _Derived:
    """Return the config that `detlite init` would write, adapted to overrides, and its choices.

    With SOLVER.MAX_MINUTES in `opts`, in a single process, the model is chosen by timing steps.
    """
    values = overridden(load_config(None, opts), opts)
    minutes = values.get("SOLVER.MAX_MINUTES")
    if minutes and facts.processes == 1:

        def time_step(facts: DatasetFacts, choices: Sequence[Choice]) -> float:
            return timer(as_config(facts, choices, opts))

        facts = fit_to_minutes(facts, minutes, time_step, values=values)
    choices = choose(facts, values)
    return as_config(facts, choices, opts), choices


def config_by_weights(
    facts: DatasetFacts, opts: Sequence[Any], timer: ConfigTimer, checkpoint: Checkpoint
) -> _Derived:
    """Return a config that trains a checkpoint's model by the rules, and its choices.

    The MODEL and INPUT keys of the checkpoint are kept. The mask head is removed for data without
    masks, and the keypoint head for data with other keypoints or none. SOLVER.MAX_MINUTES affects
    only the warm-up and the evaluations.
    """
    content = _model_keys(checkpoint)
    if not facts.masks:
        content["MODEL.MASK_ON"] = False
    keypoints = content.get("MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES")
    if len(facts.train.keypoints) != keypoints or not facts.keypoints:
        content["MODEL.KEYPOINT_ON"] = False

    def config(choices: Sequence[Choice]) -> CfgNode:
        cfg = config_from(content | _values(choices), checkpoint.path, opts)
        return apply_convention(cfg, checkpoint)

    start = config([])
    log_assumptions(start, checkpoint, opts)
    # All keys, because a converted checkpoint has only those that are not the default.
    values = {key: value for key, value in flatten(start) if key.startswith(_MODEL_SECTIONS)}
    if facts.train.values is not None:
        # Keep the scale of inputs that the weights were trained with.
        scale = _IMAGENET_STD * (255 if values["INPUT.TO_BGR255"] else 1)
        gain = sum(values["INPUT.PIXEL_STD"]) / len(values["INPUT.PIXEL_STD"]) / scale
        std = tuple(gain * value for value in facts.train.values.std)
        train = replace(facts.train, values=replace(facts.train.values, std=std))
        facts = replace(facts, train=train)
    values = {key: value for key, value in values.items() if not _is_of_data(key, value, facts)}
    values |= overridden(start, opts)
    minutes = values.get("SOLVER.MAX_MINUTES")
    if minutes and facts.processes == 1:
        seconds = timer(config(choose(facts, values, TRAINING_RULES)))
        facts = replace(facts, minutes=(minutes, "Timed on this machine"), step_seconds=seconds)
    choices = choose(facts, values, TRAINING_RULES)
    return config(choices), choices


def config_by_rules(
    opts: Sequence[Any], timer: ConfigTimer, checkpoint: Checkpoint | None = None
) -> _Derived:
    """Return the config of a run without a config file, and its choices; every process calls it.

    Args:
        opts: overrides, which name one dataset to train on and at most one to evaluate on.
        timer: times a training step.
        checkpoint: initial weights, whose model is used.

    Raises:
        ConfigError: the checkpoint does not contain its config.
        DataError: the data cannot be used, see `compute_statistics`.
    """
    start = load_config(None, opts)
    if checkpoint:
        model = config_from(_model_keys(checkpoint), checkpoint.path, opts)
        start = apply_convention(model, checkpoint)

    def derive() -> _Derived:
        sets = start.DATASETS
        facts = DatasetFacts(
            _statistics(start, sets.TRAIN[0]),
            _statistics(start, sets.TEST[0]) if sets.TEST else None,
            resources(start.MODEL.DEVICE),
            processes=world_size(),
        )
        if checkpoint:
            return config_by_weights(facts, opts, timer, checkpoint)
        return config_by_data(facts, opts, timer)

    # All processes use the config of rank 0, since their machines may differ.
    derived: _Derived = all_gather_objects(derive() if is_main() else None)[0]
    return derived


def choices_by_weights(
    facts: DatasetFacts, dataset_keys: Sequence[Choice], weights: str, timer: ConfigTimer,
    minutes: float | None = None,
) -> list[Choice]:  # fmt: skip
    """Return all keys of a config that trains a checkpoint's model; `config_text` needs no base.

    The weights are a path, a URL or a name; steps are timed if there are `minutes`.
    """
    weights = _coco_weights(facts) if weights == COCO else weights
    weights = str(Path(weights).absolute()) if Path(weights).is_file() else weights
    values = {
        **_values(dataset_keys),
        "MODEL.WEIGHT": weights,
        "MODEL.REINIT_HEADS": True,
        "MODEL.ROI_BOX_HEAD.NUM_CLASSES": len(facts.train.categories) + 1,
    }
    if minutes:
        values["SOLVER.MAX_MINUTES"] = minutes
    opts = [word for pair in values.items() for word in pair]
    checkpoint = read_checkpoint(resolve_checkpoint_path(weights, opts))
    cfg, choices = config_by_weights(facts, opts, timer, checkpoint)
    reasons = {choice.key: choice.reason for choice in (*dataset_keys, *choices)}
    reasons["MODEL.WEIGHT"] = "initial weights; the other keys of MODEL and INPUT are theirs"
    reasons["MODEL.REINIT_HEADS"] = "keep what the heads know of categories with the same name"
    defaults = dict(flatten(load_config(None)))
    return [
        Choice(key, value, reasons.get(key, ""))
        for key, value in flatten(cfg)
        if defaults.get(key) != value
    ]


@CONFIG_BUILDERS.register("autoconfig")
def build_run_config(weights: str | Path | None, opts: list[Any]) -> CfgNode:
    """Build the config of `detlite.train` without a config, and log the choices."""
    checkpoint = None
    if weights == COCO:
        start = load_config(None, opts)
        if is_main():
            train = _statistics(start, start.DATASETS.TRAIN[0])
            weights = _coco_weights(DatasetFacts(train, None, resources(start.MODEL.DEVICE)))
        weights = all_gather_objects(weights)[0]
        opts = [*opts, "MODEL.WEIGHT", weights]
    if weights is not None:
        checkpoint = read_checkpoint(resolve_checkpoint_path(weights, opts))
    cfg, choices = config_by_rules(opts, step_timing.mean_step_seconds, checkpoint)
    for choice in choices:
        reason = f": {choice.reason}" if choice.reason else ""
        _logger.info("chosen: %s %s%s", choice.key, choice.value, reason)
    return cfg


def _coco_weights(facts: DatasetFacts) -> str:
    keypoints = len(facts.train.keypoints) == 17 and facts.keypoints
    return coco_weights(facts.masks, facts.device == "gpu", keypoints)


def _model_keys(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the keys of a checkpoint's model, and the defaults for training it."""
    stored = dict(flatten(checkpoint_config(checkpoint) or {}))
    if not stored:
        raise ConfigError(
            f"{checkpoint.path}: does not contain the config of a detector, for example because it "
            "is a classifier: pass a config that uses it, or leave out the weights to train a "
            "backbone that is installed with its weights"
        )
    content = dict(flatten({"SOLVER": load_config("_base_/from_scratch_fpn.yaml").SOLVER}))
    content |= {key: value for key, value in stored.items() if key.startswith(_MODEL_SECTIONS)}
    for key in ("MODEL.DEVICE", "MODEL.WEIGHT_ROOT"):  # of the machine that trained it
        content.pop(key, None)
    key = "MODEL.BACKBONE.FREEZE_NORM_BELOW"
    content[key] = max(content.get(key, 0), _MIN_NORM_IMAGES)
    return content


def _is_of_data(key: str, value: Any, facts: DatasetFacts) -> bool:
    """Return True if the images decide on a key of a checkpoint."""
    if key in ("INPUT.PIXEL_MEAN", "INPUT.PIXEL_STD"):
        measured = facts.train.values
        return measured is not None and measured.options.channels not in (3, len(value))
    return (key == "INPUT.IMAGE_BITS" and value == 16) or (key == "INPUT.VALUE_RANGE" and not value)


def _statistics(cfg: CfgNode, name: str) -> DatasetStatistics:
    _, annotations, images = locate_dataset(cfg, name)
    return compute_statistics(
        annotations,
        images,
        build_image_options(cfg),
        cfg.DATASETS.CHECK_IMAGES,
        cfg.DATASETS.CROWDS_AS_OBJECTS,
    )


def overridden(cfg: CfgNode, opts: Sequence[Any]) -> Values:
    """Return the overridden keys with their values in the config."""
    values = dict(flatten(cfg))
    return {key: values[key] for key in opts[::2] if key in values}


def _values(choices: Sequence[Choice]) -> dict[str, Any]:
    return {choice.key: choice.value for choice in choices}
