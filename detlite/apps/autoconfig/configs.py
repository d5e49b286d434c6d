"""Configs of runs without a config file, from the rules or from a checkpoint and the rules."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from detlite.api import CONFIG_BUILDERS
from detlite.apps.doctor.machine import resources
from detlite.checkpoint.assumptions import log_assumptions
from detlite.checkpoint.files import Checkpoint, read_checkpoint
from detlite.checkpoint.loading import resolve_checkpoint_path
from detlite.checkpoint.stored_config import apply_convention, checkpoint_config
from detlite.checkpoint.weight_catalog import COCO, coco_weights
from detlite.config import ConfigError, config_from, load_config
from detlite.config.loading import flatten
from detlite.data.datasets.catalog import locate_dataset
from detlite.data.images.pixels import build_image_options
from detlite.distributed import all_gather_objects, is_main, world_size

from . import time_budget
from .dataset_facts import BASE, Choice, DatasetFacts, Values, is_retinanet
from .rules import RULES, TRAINING_RULES, Rule, choose
from .simulation import simulate
from .statistics import compute_statistics

Progress = Callable[[str], None]
# A config, the choices that led to it, and the facts, which include what fits the time.
Derived = tuple[CfgNode, list[Choice], DatasetFacts]

_logger = logging.getLogger(__name__)
_SOURCE = Path("the config for these data")  # in error messages
# Training batch norm on batches of 4 and 8 images lowered AP (docs/training.md).
_MIN_NORM_IMAGES = 16
_IMAGENET_STD = 0.226  # of RGB in 0..1
_MODEL_SECTIONS = ("MODEL.", "INPUT.", "TEST.TILE")  # taken from a checkpoint


@CONFIG_BUILDERS.register("autoconfig")
def build_run_config(weights: str | Path | None, opts: list[Any]) -> CfgNode:
    """Build the config of `detlite.train` without a config, and log the choices."""
    cfg, choices, _ = derive_config(opts, weights)
    for choice in choices:
        reason = f": {choice.reason}" if choice.reason else ""
        _logger.info("chosen: %s %s%s", choice.key, choice.value, reason)
    return cfg


def derive_config(
    opts: Sequence[Any],
    weights: str | Path | None,
    progress: Progress = _logger.info,
) -> Derived:
    """Derive the config of a run without a config file; every process calls it.

    Args:
        opts: overrides, which name one dataset to train on and at most one to evaluate on.
        weights: checkpoint whose model is trained, by path, URL or name; None: the model is chosen.
        progress: see `fit_to_minutes`.

    Raises:
        CheckpointError, ConfigError: the checkpoint cannot be read, or lacks its config.
        DataError: the data cannot be used, see `compute_statistics`.
    """
    derived = None
    if is_main():  # all processes use the config of rank 0, since their machines may differ
        if weights == COCO:
            facts = _facts(load_config(None, opts))
            keypoints = len(facts.train.keypoints) == 17 and facts.keypoints
            weights = coco_weights(facts.masks, facts.device == "gpu", keypoints)
            opts = [*opts, "MODEL.WEIGHT", weights]
        if weights is None:
            derived = config_by_data(_facts(load_config(None, opts)), opts, progress)
        else:
            checkpoint = read_checkpoint(resolve_checkpoint_path(weights, opts))
            start = config_from(_model_keys(checkpoint), checkpoint.path, opts)
            facts = _facts(apply_convention(start, checkpoint))
            derived = config_by_weights(facts, opts, checkpoint, progress)
    result: Derived = all_gather_objects(derived)[0]
    return result


def config_by_data(
    facts: DatasetFacts, opts: Sequence[Any], progress: Progress = _logger.info
) -> Derived:
    """Return the config that the rules choose, adapted to overrides.

    With SOLVER.MAX_MINUTES in `opts`, in a single process, the batch and the image size are chosen
    by timing steps.
    """

    def build(choices: Sequence[Choice]) -> CfgNode:
        return config_from(_values(choices, opts), _SOURCE, opts, BASE)

    values = overridden_values(load_config(None, opts), opts)
    return _derive(facts, values, RULES, build, progress)


def config_by_weights(
    facts: DatasetFacts,
    opts: Sequence[Any],
    checkpoint: Checkpoint,
    progress: Progress = _logger.info,
) -> Derived:
    """Return a config that trains a checkpoint's model by the rules.

    The MODEL, INPUT and TEST.TILE keys of the checkpoint are kept, except for the number of
    categories. The mask head is removed for data without masks, and the keypoint head for data with
    other keypoints or none. SOLVER.MAX_MINUTES affects only the warm-up and the evaluations.
    """
    content, train = _model_keys(checkpoint), facts.train
    node = "RETINANET" if is_retinanet(content) else "ROI_BOX_HEAD"
    content[f"MODEL.{node}.NUM_CLASSES"] = len(train.categories) + 1
    if not facts.masks:
        content["MODEL.MASK_ON"] = False
    keypoints = content.get("MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES")
    if len(train.keypoints) != keypoints or not facts.keypoints:
        content["MODEL.KEYPOINT_ON"] = False

    def build(choices: Sequence[Choice]) -> CfgNode:
        cfg = config_from(content | _values(choices, opts), checkpoint.path, opts)
        return apply_convention(cfg, checkpoint)

    start = build([])
    log_assumptions(start, checkpoint, opts)
    # All keys, because a converted checkpoint has only the non-default keys.
    values = {key: value for key, value in flatten(start) if key.startswith(_MODEL_SECTIONS)}
    if train.values is not None:
        # Keep the scale of inputs that the weights were trained with.
        scale = _IMAGENET_STD * (255 if values["INPUT.TO_BGR255"] else 1)
        gain = sum(values["INPUT.PIXEL_STD"]) / len(values["INPUT.PIXEL_STD"]) / scale
        std = tuple(gain * value for value in train.values.std)
        facts = replace(facts, train=replace(train, values=replace(train.values, std=std)))
    values = {k: value for k, value in values.items() if not _follows_images(k, value, facts)}
    values |= overridden_values(start, opts)
    return _derive(facts, values, TRAINING_RULES, build, progress)


def _derive(
    facts: DatasetFacts,
    values: Values,
    rules: Sequence[Rule],
    build: Callable[[Sequence[Choice]], CfgNode],
    progress: Progress,
) -> Derived:
    def step_timer(choices: Sequence[Choice], seconds: float) -> float:
        return time_budget.mean_step_seconds(build(choices), seconds)

    facts = time_budget.fit_to_minutes(facts, values, step_timer, progress, rules)
    choices = choose(facts, values, rules)
    cfg = build(choices)
    progress(simulate(cfg, facts))
    return cfg, choices, facts


def _model_keys(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the keys of a checkpoint's model, and the defaults for training it."""
    stored = dict(flatten(checkpoint_config(checkpoint) or {}))
    if not stored:
        raise ConfigError(
            f"{checkpoint.path}: does not contain the config of a detector, for example because it "
            "is a classifier: pass a config that uses it, or omit the weights to train a "
            "backbone that is installed with its weights"
        )
    content = dict(flatten({"SOLVER": load_config("_base_/from_scratch_fpn.yaml").SOLVER}))
    content |= {key: value for key, value in stored.items() if key.startswith(_MODEL_SECTIONS)}
    # Of the machine and of the data that trained it.
    for key in ("MODEL.DEVICE", "MODEL.WEIGHT_ROOT", "INPUT.MIN_AREA"):
        content.pop(key, None)
    key = "MODEL.BACKBONE.FREEZE_NORM_BELOW"
    content[key] = max(content.get(key, 0), _MIN_NORM_IMAGES)
    return content


def _follows_images(key: str, value: Any, facts: DatasetFacts) -> bool:
    """Return True if a key of a checkpoint must be chosen again for the images."""
    if key in ("INPUT.PIXEL_MEAN", "INPUT.PIXEL_STD"):
        measured = facts.train.values
        return measured is not None and measured.options.channels not in (3, len(value))
    if key == "INPUT.MIN_AREA":
        return True
    return (key == "INPUT.IMAGE_BITS" and value == 16) or (key == "INPUT.VALUE_RANGE" and not value)


def _facts(cfg: CfgNode) -> DatasetFacts:
    """Return the facts about the datasets of a config and this machine."""
    datasets = cfg.DATASETS
    sets = [
        compute_statistics(*locate_dataset(cfg, names[0])[1:], build_image_options(cfg),
                           datasets.CHECK_IMAGES, datasets.CROWDS_AS_OBJECTS)
        for names in (datasets.TRAIN, datasets.TEST) if names
    ]  # fmt: skip
    val = sets[1] if len(sets) > 1 else None
    return DatasetFacts(sets[0], val, resources(cfg.MODEL.DEVICE), processes=world_size())


def overridden_values(cfg: CfgNode, opts: Sequence[Any]) -> Values:
    """Return the overridden keys with their values in the config."""
    values = dict(flatten(cfg))
    return {key: values[key] for key in opts[::2] if key in values}


def _values(choices: Sequence[Choice], opts: Sequence[Any]) -> dict[str, Any]:
    """Return the values of the keys that are not overridden."""
    return {choice.key: choice.value for choice in choices if choice.key not in opts[::2]}
