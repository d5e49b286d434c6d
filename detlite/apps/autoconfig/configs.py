"""Configs that no file describes: what the rules choose, or a checkpoint's model and they."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from detlite.apps.doctor import resources
from detlite.config import ConfigError, config_from, load_config
from detlite.config.loading import flatten
from detlite.conventions import convention_of
from detlite.conversion.checkpoint.files import Checkpoint
from detlite.conversion.checkpoint.loading import config_of, with_convention
from detlite.data.datasets.catalog import locate_dataset
from detlite.distributed import all_gather_objects, is_main, world_size

from .dataset_facts import Choice, Chosen, Facts
from .rules import TRAINING_RULES, choose
from .statistics import SetStatistics, measure
from .time_budget import fit

StepTimer = Callable[[CfgNode], float]

_logger = logging.getLogger(__name__)
_SOURCE = Path("the config for these data")  # in messages
# A config, and what was chosen for it.
_Derived = tuple[CfgNode, list[Choice]]
# Batch norm that was trained on in batches of 4 and of 8 lost AP (docs/recipes.md).
_LEAST_NORM_IMAGES = 16
_OF_MODEL = ("MODEL.", "INPUT.")  # keys that are a checkpoint's


def as_config(facts: Facts, choices: Sequence[Choice], opts: Sequence[Any] = ()) -> CfgNode:
    """The config that a file of these choices would be, with overrides `KEY, VALUE, ...`."""
    return config_from(_keys(choices), _SOURCE, opts, facts.base)


def config_by_data(facts: Facts, opts: Sequence[Any], seconds_of_step: StepTimer) -> _Derived:
    """What `detlite init` writes, where overrides do not say otherwise.

    Args:
        facts: of the data and the machine.
        opts: overrides, which name the data sets. For SOLVER.MAX_MINUTES, in a single process, the
            model is fitted by timed steps.
        seconds_of_step: of a config.
    """
    given = _given(load_config(None, opts), opts)
    minutes = given.get("SOLVER.MAX_MINUTES")
    if minutes and facts.processes == 1:

        def timer(facts: Facts, choices: Sequence[Choice]) -> float:
            return seconds_of_step(as_config(facts, choices, opts))

        facts = fit(facts, minutes, timer, given=given)
        if facts.minutes:
            _logger.info("%s", facts.minutes[1])
    choices = choose(facts, given)
    return as_config(facts, choices, opts), choices


def config_by_weights(
    facts: Facts, opts: Sequence[Any], seconds_of_step: StepTimer, checkpoint: Checkpoint
) -> _Derived:
    """A checkpoint's model, trained as the rules say.

    Its MODEL and INPUT keys are kept; of data without masks, or with other keypoints, it has no
    head for them.

    Args:
        facts, opts, seconds_of_step: as above; `opts` name the weights as well, and the minutes
            decide the warm-up and the evaluations alone.
        checkpoint: whose config says what it is of.
    """
    content = _model(checkpoint)
    if not facts.all_have("with_masks"):
        content["MODEL.MASK_ON"] = False
    points = content.get("MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES")
    if len(facts.train.keypoints) != points or not facts.all_have("with_keypoints"):
        content["MODEL.KEYPOINT_ON"] = False

    def config(choices: Sequence[Choice]) -> CfgNode:
        cfg = config_from(content | _keys(choices), checkpoint.path, opts)
        return with_convention(cfg, checkpoint)

    start = config([])
    # All of them, as a converted checkpoint names only those that are not the default.
    given = {key: value for key, value in flatten(start) if key.startswith(_OF_MODEL)}
    given |= _given(start, opts)
    minutes = given.get("SOLVER.MAX_MINUTES")
    if minutes and facts.processes == 1:
        seconds = seconds_of_step(config(choose(facts, given, TRAINING_RULES)))
        facts = replace(facts, minutes=(minutes, "Timed on this machine"), step_seconds=seconds)
    choices = choose(facts, given, TRAINING_RULES)
    return config(choices), choices


def config_by_rules(
    opts: Sequence[Any], seconds_of_step: StepTimer, checkpoint: Checkpoint | None = None
) -> _Derived:
    """The config of a run that names none; every process calls it.

    Args:
        opts: overrides, which name the data sets, one to train on and at most one to test on.
        seconds_of_step: of a config.
        checkpoint: the weights to start from, whose model is taken.

    Raises:
        ConfigError: a checkpoint that does not say which model it is of.
        DataError: data that cannot be used, see `measure`.
    """
    start = load_config(None, opts)
    if checkpoint:
        model = config_from(_model(checkpoint), checkpoint.path, opts)
        start = with_convention(model, checkpoint)

    def derive() -> _Derived:
        sets = start.DATASETS
        facts = Facts(
            _measured(start, sets.TRAIN[0]),
            _measured(start, sets.TEST[0]) if sets.TEST else None,
            resources(start.MODEL.DEVICE),
            processes=world_size(),
        )
        if checkpoint:
            return config_by_weights(facts, opts, seconds_of_step, checkpoint)
        return config_by_data(facts, opts, seconds_of_step)

    # Machines may differ, the config of a run does not.
    found: _Derived = all_gather_objects(derive() if is_main() else None)[0]
    return found


def _model(checkpoint: Checkpoint) -> dict[str, Any]:
    """What a checkpoint says of its model, and what is said of training here."""
    stored = dict(flatten(config_of(checkpoint) or {}))
    if not stored:
        raise ConfigError(
            f"{checkpoint.path}: does not say which detector it is for, as a classifier's body "
            "does not: name a config with it, or leave the weights out, so that a body is chosen "
            "that is installed with its own"
        )
    content = dict(flatten({"SOLVER": load_config("_base_/from_scratch_fpn.yaml").SOLVER}))
    content |= {key: value for key, value in stored.items() if key.startswith(_OF_MODEL)}
    for key in ("MODEL.DEVICE", "MODEL.WEIGHT_ROOT"):  # of the machine where it was trained
        content.pop(key, None)
    key = "MODEL.BACKBONE.FREEZE_NORM_BELOW"
    content[key] = max(content.get(key, 0), _LEAST_NORM_IMAGES)
    return content


def _measured(cfg: CfgNode, name: str) -> SetStatistics:
    _, annotations, images = locate_dataset(cfg, name)
    return measure(
        annotations,
        images,
        cfg.DATASETS.MAX_PIXELS,
        cfg.INPUT.PICTURE_BITS,
        convention_of(cfg).exif_orientation,
        cfg.DATASETS.CHECK_PICTURES,
    )


def _given(cfg: CfgNode, opts: Sequence[Any]) -> Chosen:
    """What overrides say, as a config with them has it."""
    values = dict(flatten(cfg))
    return {key: values[key] for key in opts[::2] if key in values}


def _keys(choices: Sequence[Choice]) -> dict[str, Any]:
    return {choice.key: choice.value for choice in choices}
