"""Time training steps, and choose a model and an image size that fit into a number of minutes.

The candidates are timed from the largest to the fastest. The first one that can do half of the
recommended steps (`training_steps.recommended_steps`) is chosen, or else the last one. Images
shrink before the model does: in 5 and in 15 minutes, more epochs on smaller images had the same or
better results (docs/training.md). They do not shrink below the size that the objects need.
"""

import logging
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from yacs.config import CfgNode

from detlite.config import ConfigError
from detlite.data import build_train_dataset, build_train_loader
from detlite.engine.rng import seed_all
from detlite.engine.run_config import resolve_frozen_norms
from detlite.engine.solver import build_optimizer
from detlite.engine.train_step import TrainStep
from detlite.modeling import build_model
from detlite.modeling.optimize_for_training import optimize_for_training

from .dataset_facts import Choice, DatasetFacts, Values, backbone_is_fixed
from .rules import RULES, Rule, choose
from .training_steps import MIN_FRACTION, recommended_steps

_MIN_IMAGES = 8  # because image sizes and the number of objects vary
_MAX_SECONDS = 15.0  # after which no further step is timed
_MAX_TIMING_SECONDS = 60.0  # after which only the last candidate is still timed
# (use the small model, factor on the image size)
_CANDIDATES = ((False, 1.0), (False, 0.75), (True, 0.75), (True, 0.5))

_logger = logging.getLogger(__name__)

# Returns the seconds of a training step.
StepTimer = Callable[[DatasetFacts, Sequence[Choice]], float]


def _candidates(facts: DatasetFacts, values: Values) -> Iterator[tuple[str, DatasetFacts]]:
    """Yield candidates with their descriptions, from the largest to the fastest."""
    # The small model has no other pretrained weights than the installed ones.
    has_small = facts.machine.pretrained and not backbone_is_fixed(values)
    fixed_size = not values.keys().isdisjoint({"INPUT.MIN_SIZE_TRAIN", "INPUT.MIN_SIZE_TEST"})
    models = [(small and has_small, 1.0 if fixed_size else shrink) for small, shrink in _CANDIDATES]
    for small, shrink in dict.fromkeys(models):
        name = "the small model" if small else "the model"
        size = "" if shrink == 1 else f" with images of {shrink:g} times their side"
        yield name + size, replace(facts, small=small, shrink=shrink)


def fit_to_minutes(
    facts: DatasetFacts,
    values: Values,
    step_timer: StepTimer,
    progress: Callable[[str], None] = _logger.info,
    rules: Sequence[Rule] = RULES,
    clock: Callable[[], float] = time.perf_counter,
) -> DatasetFacts:
    """Return facts from which `choose` derives a config for SOLVER.MAX_MINUTES of training.

    `values` are the keys that are already decided. Without SOLVER.MAX_MINUTES among them, or with
    several processes, the facts are unchanged. `progress` is called with a line of text after each
    candidate. Raises ConfigError if no candidate fits into the memory of the GPU.
    """
    minutes = values.get("SOLVER.MAX_MINUTES")
    if not minutes or facts.processes > 1:
        return facts
    start = clock()
    results, sizes = list[str](), set[tuple[bool, Any]]()
    chosen: DatasetFacts | None = None
    described = list(_candidates(facts, values))
    for name, candidate in described:
        is_last = name == described[-1][0]
        if chosen and not is_last and clock() - start > _MAX_TIMING_SECONDS:
            continue
        choices = choose(candidate, values, rules)
        all_values = {choice.key: choice.value for choice in choices} | dict(values)
        tried = candidate.small, all_values.get("INPUT.MIN_SIZE_TEST")
        if tried in sizes:  # the objects need this size
            continue
        sizes.add(tried)
        try:
            seconds = step_timer(candidate, choices)
        except torch.OutOfMemoryError:
            results.append(f"{name}: too large for the GPU memory")
            progress(results[-1])
            continue
        chosen = replace(candidate, step_seconds=seconds)
        recommended, _ = recommended_steps(chosen, all_values)
        possible = int(minutes * 60 / seconds)
        results.append(f"{name}: {seconds:.2g} seconds per step, {possible} of {recommended} steps")
        progress(results[-1])
        if possible >= MIN_FRACTION * recommended:
            break
    if chosen is None:
        raise ConfigError(
            f"no model fits into the GPU memory ({'; '.join(results)}): stop other programs that "
            "use the GPU, or train on the CPU with CUDA_VISIBLE_DEVICES set to an empty value"
        )
    timed = f"Timed on this machine, where half of the steps are enough: {'; '.join(results)}"
    if possible < MIN_FRACTION * recommended:
        needed = math.ceil(MIN_FRACTION * recommended * seconds / 60)
        short = (
            f"{minutes:g} minutes are short: about {possible} of {recommended} recommended steps. "
            f"The images are not made smaller, because the objects need their size; {needed} "
            "minutes allow half of the steps"
        )
        progress(short)
        timed += f". {short}"
    return replace(chosen, minutes=(minutes, timed))


def mean_step_seconds(cfg: CfgNode) -> float:
    """Return the mean duration of three training steps, or of more for at least eight images."""
    return statistics.mean(
        step_seconds(cfg, max(3, math.ceil(_MIN_IMAGES / cfg.SOLVER.IMS_PER_BATCH)))
    )


def step_seconds(
    cfg: CfgNode,
    steps: int = 3,
    warm_up: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Return the seconds of training steps, including loading, after `warm_up` steps.

    The weights are random, because they do not affect the duration. After 15 seconds no further
    step is timed, but at least one is. No file is written.
    """
    seed_all(cfg.SEED, cfg.SOLVER.DETERMINISTIC)
    cfg = resolve_frozen_norms(cfg)
    train_set = build_train_dataset(cfg)
    model = build_model(cfg)
    model.categories = train_set.categories
    model.train()
    optimize_for_training(model)
    scaler = torch.amp.GradScaler(model.device.type, enabled=cfg.DTYPE == "float16")
    train_step = TrainStep(cfg, model, build_optimizer(cfg, model), scaler)
    batches = iter(build_train_loader(cfg, train_set))
    seconds: list[float] = []
    while len(seconds) < steps + warm_up and sum(seconds) < _MAX_SECONDS:
        start = clock()
        train_step(*next(batches))
        if model.device.type != "cpu":
            torch.accelerator.synchronize()
        seconds.append(clock() - start)
    return seconds[warm_up:] or seconds[-1:]
