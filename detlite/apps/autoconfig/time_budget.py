"""Time training steps, and choose a batch and an image size that fit into a number of minutes.

The number of steps decides short trainings. If half of the recommended steps
(`training_steps.recommended_steps`) do not fit into the time, each step trains on one image, and
images shrink until they do, but not below the size that the objects need. In 5 and in 15 minutes,
more epochs on smaller images had the same or better results (docs/training.md).
"""

import logging
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

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

from .dataset_facts import Choice, DatasetFacts, Values
from .rules import RULES, Rule, choose
from .training_steps import MIN_FRACTION, input_pixels, recommended_steps

_MIN_IMAGES = 8  # because image sizes and the number of objects vary
_TIMING_FRACTION, _MAX_TIMING = 0.1, 60.0  # of the minutes; seconds
_SHRINK = (1.0, 0.75, 0.5)  # factors on the image size

_logger = logging.getLogger(__name__)

# Returns the seconds of a training step, measured for about the seconds of the last argument.
StepTimer = Callable[[Sequence[Choice], float], float]


class _Candidate(NamedTuple):
    """A batch size and image size: their facts, choices, and pixels per step."""

    facts: DatasetFacts
    choices: list[Choice]
    values: dict[str, Any]
    pixels: float

    def __str__(self) -> str:
        batch, size = (self.values[k] for k in ("SOLVER.IMS_PER_BATCH", "INPUT.MIN_SIZE_TEST"))
        return f"{batch} image{'s' * (batch > 1)} of {size} pixels per step"


def _candidates(facts: DatasetFacts, values: Values, rules: Sequence[Rule]) -> list[_Candidate]:
    """Return the candidates, from the largest to the fastest."""
    shrinks: tuple[float, ...] = _SHRINK
    if not values.keys().isdisjoint({"INPUT.MIN_SIZE_TRAIN", "INPUT.MIN_SIZE_TEST"}):
        shrinks = (1.0,)
    found: dict[str, _Candidate] = {}
    for single, shrink in ((False, 1.0), *((True, shrink) for shrink in shrinks)):
        candidate = replace(facts, single_images=single, shrink=shrink)
        choices = choose(candidate, values, rules)
        all_values = {choice.key: choice.value for choice in choices} | dict(values)
        adapted = candidate.adapted(all_values)
        pixels = all_values["SOLVER.IMS_PER_BATCH"] * input_pixels(adapted, all_values)
        one = _Candidate(candidate, choices, all_values, pixels)
        found.setdefault(str(one), one)  # the objects may need the size of a previous one
    return [*found.values()]


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
    several processes, the facts are unchanged. The fastest candidate is timed, and the largest one
    if that does not take too long; times of the others follow from the pixels of a step. `progress`
    is called with lines of text. Raises ConfigError if no candidate fits into the GPU memory.
    """
    minutes = values.get("SOLVER.MAX_MINUTES")
    if not minutes or facts.processes > 1:
        return facts
    limit = min(_TIMING_FRACTION * 60 * minutes, _MAX_TIMING)
    progress(f"timing training steps on this machine, for about {limit:.0f} seconds")
    candidates, start = _candidates(facts, values, rules), clock()
    fastest, largest = candidates[-1], candidates[0]
    try:
        seconds = step_timer(fastest.choices, limit / 2)
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"{fastest} do not fit into the GPU memory: stop other programs that use the GPU, or "
            "train on the CPU with CUDA_VISIBLE_DEVICES set to an empty value"
        ) from error
    per_pixel = seconds / fastest.pixels
    left = limit - (clock() - start)
    if largest.pixels > fastest.pixels and 2 * per_pixel * largest.pixels <= left:
        try:
            longest = step_timer(largest.choices, left)
            per_pixel = max(longest - seconds, 0) / (largest.pixels - fastest.pixels)
        except torch.OutOfMemoryError:
            progress(f"{largest}: too large for the GPU memory")
            candidates = candidates[1:]
    lines = []
    for chosen in candidates:
        step = seconds + per_pixel * (chosen.pixels - fastest.pixels)
        recommended, _ = recommended_steps(chosen.facts.adapted(chosen.values), chosen.values)
        possible = int(minutes * 60 / step)
        lines.append(f"{chosen}: {step:.2g} seconds, {possible} of {recommended} recommended steps")
        if possible >= MIN_FRACTION * recommended:
            break
    else:
        needed = math.ceil(MIN_FRACTION * recommended * step / 60)
        given = "1 minute is" if minutes == 1 else f"{minutes:g} minutes are"
        lines.append(f"{given} short: {needed} minutes allow half of the steps")
    for line in lines:
        progress(line)
    timed = f"Timed on this machine, where half of the steps are enough: {'; '.join(lines)}"
    return replace(chosen.facts, step_seconds=step, minutes=(minutes, timed))


def mean_step_seconds(cfg: CfgNode, max_seconds: float) -> float:
    """Return the mean duration of three training steps, or of more for at least eight images."""
    steps = max(3, math.ceil(_MIN_IMAGES / cfg.SOLVER.IMS_PER_BATCH))
    return statistics.mean(step_seconds(cfg, steps, max_seconds=max_seconds))


def step_seconds(
    cfg: CfgNode,
    steps: int = 3,
    warm_up: int = 1,
    max_seconds: float = 15.0,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Return the seconds of training steps, including loading, after `warm_up` steps.

    The weights are random, because they do not affect the duration. After `max_seconds`, which
    include building the model, no further step is timed, but at least one is. No file is written.
    """
    end = clock() + max_seconds
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
    while ((start := clock()) < end and len(seconds) < steps + warm_up) or not seconds:
        train_step(*next(batches))
        if model.device.type != "cpu":
            torch.accelerator.synchronize()
        seconds.append(clock() - start)
    return seconds[warm_up:] or seconds[-1:]
