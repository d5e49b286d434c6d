"""Configs of runs without a config file, from the rules or from a checkpoint and the rules."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from detlite.apps.doctor.machine import resources
from detlite.checkpoint.contents import Checkpoint
from detlite.checkpoint.files import read_checkpoint
from detlite.checkpoint.loading import resolve_checkpoint_path
from detlite.checkpoint.stored_config import apply_convention, checkpoint_config, log_assumptions
from detlite.checkpoint.weight_catalog import COCO, coco_weights
from detlite.config import ConfigError, config_from, load_config
from detlite.config.loading import flatten
from detlite.data.datasets.catalog import locate_dataset
from detlite.data.images.pixels import build_image_options
from detlite.distributed import all_gather_objects, is_main, world_size

from . import time_budget
from .dataset_facts import BASE, Choice, DatasetFacts, Values
from .rules import choose
from .simulation import lost_objects
from .statistics import DatasetStatistics, compute_statistics

Progress = Callable[[str], None]
# A config, the choices that led to it, and the facts, which include what fits the time.
Derived = tuple[CfgNode, list[Choice], DatasetFacts]

_logger = logging.getLogger(__name__)
_SOURCE = Path("the config for these data")  # in error messages
# Training batch norm on batches of 4 and 8 images lowered AP (docs/training.md).
_MIN_NORM_IMAGES = 16
_IMAGENET_STD = 0.226  # of RGB in 0..1
_MODEL_SECTIONS = ("MODEL.", "INPUT.", "TEST.TILE")  # taken from a checkpoint


def build_run_config(weights: str | Path | None, opts: list[Any]) -> CfgNode:
    """Build the config of `detlite.train` without a config, and log the choices."""
    cfg, choices, _ = derive_config(opts, weights)
    for choice in choices:
        reason = f": {choice.reason}" if choice.reason else ""
        _logger.info("chosen: %s %s%s", choice.key, choice.value, reason)
    return cfg


def derive_config(
    opts: Sequence[Any], weights: str | Path | None, progress: Progress = _logger.info
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
    derived = checkpoint = None
    if is_main():  # all processes use the config of rank 0, since their machines may differ
        if weights == COCO:
            facts = _facts(load_config(None, opts))
            keypoints = len(facts.train.keypoints) == 17 and facts.keypoints
            weights = coco_weights(facts.masks, facts.device == "GPU", keypoints)
            opts = [*opts, "MODEL.WEIGHT", weights]
        if weights is not None:
            checkpoint = read_checkpoint(resolve_checkpoint_path(weights, opts))
        content = _model_keys(checkpoint) if checkpoint else {}
        derived = config_for(_facts(_build(content, opts, checkpoint)), opts, checkpoint, progress)
    result: Derived = all_gather_objects(derived)[0]
    return result


def config_for(
    facts: DatasetFacts,
    opts: Sequence[Any],
    checkpoint: Checkpoint | None = None,
    progress: Progress = _logger.info,
) -> Derived:
    """Return the config that the rules choose, adapted to overrides.

    With SOLVER.MAX_MINUTES in `opts`, in a single process, the batch is chosen by timing steps.

    With a checkpoint, its model is trained: its MODEL, INPUT and TEST.TILE keys are kept, except
    for the number of categories. The mask head is removed for data without masks, and the keypoint
    head for data with other keypoints or none.
    """
    content = _model_keys(checkpoint, facts) if checkpoint else {}
    start = _build(content, opts, checkpoint)
    known = dict(flatten(start))
    values = {key: known[key] for key in opts[::2] if key in known}
    if checkpoint:
        log_assumptions(start, checkpoint, opts)
        facts = replace(facts, trained=True, train=_with_input_scale(facts.train, start))
        values = _kept_values(known, facts) | values
    elif start.MODEL.META_ARCHITECTURE == "RetinaNet":
        raise ConfigError(
            "MODEL.META_ARCHITECTURE is RetinaNet, but the keys are chosen for R-CNNs: use "
            "--weights of a RetinaNet, or `detlite train --config coco/retinanet_R_50_FPN_1x.yaml`"
        )

    def build(choices: Sequence[Choice]) -> CfgNode:
        chosen = {choice.key: choice.value for choice in choices if choice.key not in opts[::2]}
        return _build(content | chosen, opts, checkpoint)

    def step_timer(choices: Sequence[Choice], seconds: float) -> float:
        return time_budget.mean_step_seconds(build(choices), seconds)

    facts = time_budget.fit_to_minutes(facts, values, step_timer, progress)
    choices = choose(facts, values)
    train = facts.train
    for head, count in (("MASK", train.with_masks), ("KEYPOINT", train.with_keypoints)):
        (is_on, reason), key = facts.head(head), f"MODEL.{head}_ON"
        if count and not is_on and key not in opts[::2]:
            progress(f"{key} is False: {reason}")
    cfg = build(choices)
    if lost := lost_objects(cfg, facts):
        progress("\n".join(lost))
    return cfg, choices, facts


def _build(content: dict[str, Any], opts: Sequence[Any], checkpoint: Checkpoint | None) -> CfgNode:
    """Build a config from the BASE, or from the keys of a checkpoint."""
    if checkpoint is None:
        return config_from(content, _SOURCE, opts, BASE)
    return apply_convention(config_from(content, checkpoint.path, opts), checkpoint)


def _model_keys(checkpoint: Checkpoint, facts: DatasetFacts | None = None) -> dict[str, Any]:
    """Return the keys of a checkpoint's model, adapted to the data, and of its training."""
    stored = dict(flatten(checkpoint_config(checkpoint) or {}))
    if not stored:
        raise ConfigError(
            f"{checkpoint.path}: does not contain the config of a detector, for example because it "
            "is a classifier: pass a config that uses it, or omit the weights to train a "
            "backbone that is installed with its weights"
        )
    content = dict(flatten({"SOLVER": load_config(BASE).SOLVER}))
    content |= {key: value for key, value in stored.items() if key.startswith(_MODEL_SECTIONS)}
    # Of the machine and of the data that trained it.
    for key in ("MODEL.DEVICE", "MODEL.WEIGHT_ROOT", "INPUT.MIN_AREA"):
        content.pop(key, None)
    key = "MODEL.BACKBONE.FREEZE_NORM_BELOW"
    content[key] = max(content.get(key, 0), _MIN_NORM_IMAGES)
    if facts:
        is_retinanet = content.get("MODEL.META_ARCHITECTURE") == "RetinaNet"
        node = "RETINANET" if is_retinanet else "ROI_BOX_HEAD"
        content[f"MODEL.{node}.NUM_CLASSES"] = len(facts.train.names) + 1
        if not facts.masks:
            content["MODEL.MASK_ON"] = False
        names = content.get("MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES")
        if len(facts.train.keypoints) != names or not facts.keypoints:
            content["MODEL.KEYPOINT_ON"] = False
    return content


def _with_input_scale(train: DatasetStatistics, cfg: CfgNode) -> DatasetStatistics:
    """Keep the scale of inputs that the weights were trained with."""
    inputs = cfg.INPUT
    scale = _IMAGENET_STD * (255 if inputs.TO_BGR255 else 1)
    gain = sum(inputs.PIXEL_STD) / len(inputs.PIXEL_STD) / scale
    std = tuple(gain * value for value in train.values.std)
    return replace(train, values=replace(train.values, std=std))


def _kept_values(values: Values, facts: DatasetFacts) -> dict[str, Any]:
    """Return the keys of a checkpoint's model, except those to choose again for the images.

    A converted checkpoint has only the non-default keys, but all are kept.
    """
    again = {"INPUT.MIN_AREA"}
    if facts.train.values.options.channels not in (3, len(values["INPUT.PIXEL_MEAN"])):
        again |= {"INPUT.PIXEL_MEAN", "INPUT.PIXEL_STD"}
    if values["INPUT.IMAGE_BITS"] == 16:
        again.add("INPUT.IMAGE_BITS")
    if not values["INPUT.VALUE_RANGE"]:
        again.add("INPUT.VALUE_RANGE")
    return {k: x for k, x in values.items() if k.startswith(_MODEL_SECTIONS) and k not in again}


def _facts(cfg: CfgNode) -> DatasetFacts:
    """Return the facts about the datasets of a config and this machine."""
    datasets = cfg.DATASETS
    train, *val = [
        compute_statistics(*locate_dataset(cfg, names[0])[1:], build_image_options(cfg),
                           datasets.CHECK_IMAGES, datasets.CROWDS_AS_OBJECTS)
        for names in (datasets.TRAIN, datasets.TEST) if names
    ]  # fmt: skip
    machine = resources(cfg.MODEL.DEVICE)
    return DatasetFacts(train, val[0] if val else None, machine, processes=world_size())
