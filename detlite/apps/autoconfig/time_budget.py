"""Time training steps, and choose a batch that fits into a number of minutes.

The number of steps decides short trainings. If half of the recommended steps
(`training_steps.recommended_steps`) do not fit into the time, each step trains on one image.
Smaller images, whose steps are faster, gained nothing (benchmarks/results/recipes/minutes.md).
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

_logger = logging.getLogger(__name__)


class _Candidate:
    """A batch size: its choices, recommended steps, and pixels per step."""

    def __init__(self, facts: DatasetFacts, values: Values) -> None:
        self.facts, self.choices = facts, choose(facts, values)
        chosen = {choice.key: choice.value for choice in self.choices} | dict(values)
        adapted = facts.adapted(chosen)
        self.steps, _ = recommended_steps(adapted, chosen)
        batch, size = chosen["SOLVER.IMS_PER_BATCH"], chosen["INPUT.MIN_SIZE_TEST"]
        self.pixels = batch * input_pixels(adapted, chosen)
        self.name = f"{batch} image{'s' * (batch > 1)} of {size} pixels per step"


def fit_to_minutes(
    facts: DatasetFacts,
    values: Values,
    step_timer: Callable[[Sequence[Choice], float], float],
    progress: Callable[[str], None],
) -> DatasetFacts:
    """Return facts from which `choose` derives a config for SOLVER.MAX_MINUTES of training.

    Without SOLVER.MAX_MINUTES, or with several processes, the facts are unchanged. Steps of one
    image are timed, and those of the usual batch if that does not take too long; otherwise their
    time is assumed to be proportional to the pixels, which is an upper limit.

    Args:
        values: the keys that are already decided.
        step_timer: returns the seconds of a training step with these choices, measured for about
            the seconds of the last argument.
        progress: called with lines of text.

    Raises:
        ConfigError: a step of one image does not fit into the GPU memory.
    """
    minutes = values.get("SOLVER.MAX_MINUTES")
    if not minutes or facts.processes > 1:
        return facts
    limit = min(_TIMING_FRACTION * 60 * minutes, _MAX_TIMING)
    progress(f"timing training steps on this machine, for about {limit:.0f} seconds")
    end = perf_counter() + limit
    batch = _Candidate(facts, values)
    single = _Candidate(replace(facts, single_images=True), values)
    if single.name == batch.name:
        single = batch
    try:
        seconds = {single: step_timer(single.choices, limit / 2)}
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"a training step ({single.name}) does not fit into the GPU memory: stop other "
            "programs that use the GPU, or train on the CPU with CUDA_VISIBLE_DEVICES set to an "
            "empty value"
        ) from error
    if batch is not single:
        slowest, left = seconds[single] * batch.pixels / single.pixels, end - perf_counter()
        try:
            fits = 2 * slowest <= left
            seconds[batch] = step_timer(batch.choices, left) if fits else slowest
        except torch.OutOfMemoryError:
            progress(f"{batch.name}: too large for the GPU memory")
    lines = []
    for chosen in reversed(seconds):  # the batch first
        step = seconds[chosen]
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

    The weights are random, because they do not affect the duration. Each batch is trained twice,
    and the second time counts: in the first one, oneDNN compiles the convolutions for its shape,
    which a run does once per shape. After `max_seconds`, which include building the model, no
    further step is timed, but at least one is. No file is written. By default, three steps are
    timed, or more for at least eight images.
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
        batch = next(batches)
        loading = perf_counter() - start
        for _ in range(2):
            start = perf_counter()
            train_step(*batch)
            if model.device.type != "cpu":
                torch.accelerator.synchronize()
        seconds.append(loading + perf_counter() - start)
    return mean(seconds[warm_up:] or seconds[-1:])
