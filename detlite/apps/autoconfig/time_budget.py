"""Time training steps, and choose a batch and an image size that fit into a number of minutes.

The number of steps decides short trainings. If half of the recommended steps
(`training_steps.recommended_steps`) do not fit into the time, each step trains on one image, and
images shrink until they do, but not below the size that the objects need. In 5 and in 15 minutes,
more epochs on smaller images had the same or better results (docs/training.md).
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import mean
from time import perf_counter

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
from .rules import choose
from .training_steps import MIN_FRACTION, input_pixels, recommended_steps

_MIN_IMAGES = 8  # because image sizes and the number of objects vary
_TIMING_FRACTION, _MAX_TIMING = 0.1, 60.0  # of the minutes; seconds
# Fraction of the time of the fastest step that is assumed to grow with its pixels. It was 0.3 for
# one image of 128 pixels with Lite0 on one core.
_PIXEL_FRACTION = 0.5
_SHRINK = (1.0, 0.75, 0.5)  # factors on the image size

_logger = logging.getLogger(__name__)


class _Candidate:
    """A batch size and image size: their choices, and pixels per step."""

    def __init__(self, facts: DatasetFacts, values: Values) -> None:
        self.facts, self.choices = facts, choose(facts, values)
        chosen = {choice.key: choice.value for choice in self.choices} | dict(values)
        adapted = facts.adapted(chosen)
        self.steps, _ = recommended_steps(adapted, chosen)
        batch, size = chosen["SOLVER.IMS_PER_BATCH"], chosen["INPUT.MIN_SIZE_TEST"]
        self.pixels = batch * input_pixels(adapted, chosen)
        self.name = f"{batch} image{'s' * (batch > 1)} of {size} pixels per step"


def _candidates(facts: DatasetFacts, values: Values) -> list[_Candidate]:
    """Return the candidates, from the largest to the fastest."""
    is_fixed = values.keys() & {"INPUT.MIN_SIZE_TRAIN", "INPUT.MIN_SIZE_TEST"}
    found: dict[str, _Candidate] = {}
    for is_single, shrink in ((False, 1.0), *((True, factor) for factor in _SHRINK)):
        if shrink == 1 or not is_fixed:
            one = _Candidate(replace(facts, single_images=is_single, shrink=shrink), values)
            found.setdefault(one.name, one)  # the objects may need the size of a previous one
    return [*found.values()]


def fit_to_minutes(
    facts: DatasetFacts,
    values: Values,
    step_timer: Callable[[Sequence[Choice], float], float],
    progress: Callable[[str], None],
) -> DatasetFacts:
    """Return facts from which `choose` derives a config for SOLVER.MAX_MINUTES of training.

    Without SOLVER.MAX_MINUTES, or with several processes, the facts are unchanged. The fastest
    candidate is timed, and the largest one if that does not take too long; times of the others
    grow linearly with the pixels of a step.

    Args:
        values: the keys that are already decided.
        step_timer: returns the seconds of a training step with these choices, measured for about
            the seconds of the last argument.
        progress: called with lines of text.

    Raises:
        ConfigError: no candidate fits into the GPU memory.
    """
    minutes = values.get("SOLVER.MAX_MINUTES")
    if not minutes or facts.processes > 1:
        return facts
    limit = min(_TIMING_FRACTION * 60 * minutes, _MAX_TIMING)
    progress(f"timing training steps on this machine, for about {limit:.0f} seconds")
    candidates, end = _candidates(facts, values), perf_counter() + limit
    largest, fastest = candidates[0], candidates[-1]
    try:
        seconds = step_timer(fastest.choices, limit / 2)
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"{fastest.name} do not fit into the GPU memory: stop other programs that use the GPU, "
            "or train on the CPU with CUDA_VISIBLE_DEVICES set to an empty value"
        ) from error
    per_pixel, left = _PIXEL_FRACTION * seconds / fastest.pixels, end - perf_counter()
    growth = per_pixel * (largest.pixels - fastest.pixels)
    if growth > 0 and 2 * (seconds + growth) <= left:
        try:
            longer = step_timer(largest.choices, left) - seconds
            per_pixel = max(longer, 0) / (largest.pixels - fastest.pixels)
        except torch.OutOfMemoryError:
            progress(f"{largest.name}: too large for the GPU memory")
            candidates = candidates[1:]
    lines = []
    for chosen in candidates:
        step = seconds + per_pixel * (chosen.pixels - fastest.pixels)
        steps = int(minutes * 60 / step)
        recommended = f"{chosen.steps} recommended steps"
        lines.append(f"{chosen.name}: {step:.2g} seconds, {steps} of {recommended}")
        if steps >= MIN_FRACTION * chosen.steps:
            break
    else:
        needed = math.ceil(MIN_FRACTION * chosen.steps * step / 60)
        lines.append(f"{minutes:g} min are short: {needed} minutes allow half of the steps")
    progress("\n".join(lines))
    timed = f"Timed on this machine, where half of the steps are enough: {'; '.join(lines)}"
    return replace(chosen.facts, step_seconds=step, minutes=(minutes, timed))


def mean_step_seconds(
    cfg: CfgNode, max_seconds: float, steps: int | None = None, warm_up: int = 1
) -> float:
    """Return the mean duration of training steps, including loading, after `warm_up` steps.

    The weights are random, because they do not affect the duration. After `max_seconds`, which
    include building the model, no further step is timed, but at least one is. No file is written.
    By default, three steps are timed, or more for at least eight images.
    """
    end = perf_counter() + max_seconds
    steps = warm_up + (steps or max(3, math.ceil(_MIN_IMAGES / cfg.SOLVER.IMS_PER_BATCH)))
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
    while ((start := perf_counter()) < end and len(seconds) < steps) or not seconds:
        train_step(*next(batches))
        if model.device.type != "cpu":
            torch.accelerator.synchronize()
        seconds.append(perf_counter() - start)
    return mean(seconds[warm_up:] or seconds[-1:])
