"""Configs that no file describes: what the rules choose, or a checkpoint's model and they."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from ..config import ConfigError, config_from, load_config
from ..config.loading import flatten
from ..engine.checkpoint import Checkpoint
from ..engine.weights import config_of
from .facts import Choice, Facts
from .fitting import fit
from .rules import TRAINING_RULES, choose

Timer = Callable[[CfgNode], float]
_SOURCE = Path("the config for these data")  # in messages


def as_config(facts: Facts, choices: Sequence[Choice], opts: Sequence[Any] = ()) -> CfgNode:
    """The config that a file of these choices would be, with overrides `KEY, VALUE, ...`."""
    return config_from(_keys(choices), _SOURCE, opts, facts.base)


def config_by_data(
    facts: Facts, opts: Sequence[Any], minutes: float | None, seconds_of_step: Timer
) -> CfgNode:
    """What `detlite init` writes, with overrides.

    Args:
        facts: of the data and the machine.
        opts: overrides, which name the data sets.
        minutes: that training may take, for which steps are timed; None: as it needs.
        seconds_of_step: of a config.
    """
    if minutes is not None:
        facts = fit(
            facts, minutes, lambda facts, found: seconds_of_step(as_config(facts, found, opts))
        )
    return as_config(facts, choose(facts), opts)


def config_by_weights(
    facts: Facts,
    opts: Sequence[Any],
    minutes: float | None,
    seconds_of_step: Timer,
    checkpoint: Checkpoint,
) -> CfgNode:
    """A checkpoint's model, trained as the rules say.

    Its MODEL and INPUT keys are kept; of data without masks or keypoints it has no head for them.

    Args:
        facts, opts, minutes, seconds_of_step: as above; `opts` name the weights as well.
        checkpoint: whose config says what it is of.

    Raises:
        ConfigError: it has none.
    """
    stored = flatten(config_of(checkpoint) or {})
    if not stored:
        raise ConfigError(
            f"{checkpoint.path}: does not say which detector it is for, as a classifier's body "
            "does not: name a config with it"
        )
    base = load_config(facts.base)
    content = dict(flatten({"SOLVER": base.SOLVER}))
    content |= {key: value for key, value in stored if key.startswith(("MODEL.", "INPUT."))}
    if not facts.all_have("with_masks"):
        content["MODEL.MASK_ON"] = False
    if not facts.train.keypoints or not facts.all_have("with_keypoints"):
        content["MODEL.KEYPOINT_ON"] = False
    model = dict(flatten(config_from(content, checkpoint.path, opts)))

    def config(facts: Facts) -> CfgNode:
        chosen = _keys(choose(facts, TRAINING_RULES, model))
        return config_from(content | {"SOLVER.MAX_ITER": None} | chosen, checkpoint.path, opts)

    if minutes is not None:
        seconds = seconds_of_step(config(facts))
        facts = replace(facts, minutes=(minutes, ""), step_seconds=seconds)
    return config(facts)


def _keys(choices: Sequence[Choice]) -> dict[str, Any]:
    return {choice.key: choice.value for choice in choices}
