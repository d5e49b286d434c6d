"""Time the training steps of a config on its own data."""

import math
import statistics
import time
from collections.abc import Callable

import torch
from yacs.config import CfgNode

from detlite.data import build_train_dataset, build_train_loader
from detlite.engine.hooks.freezing import resolve_frozen_norms
from detlite.engine.rng import seed_all
from detlite.engine.solver import build_optimizer
from detlite.engine.train_step import TrainStep
from detlite.modeling import build_model
from detlite.modeling.optimize_for_training import optimize_for_training

_MIN_IMAGES = 8  # because image sizes and the number of objects vary
_MAX_SECONDS = 15.0  # after which no further step is timed


def mean_step_seconds(cfg: CfgNode) -> float:
    """Return the mean duration of three training steps, or of more for at least eight images."""
    steps = max(3, math.ceil(_MIN_IMAGES / cfg.SOLVER.IMS_PER_BATCH))
    return statistics.mean(step_seconds(cfg, steps))


def step_seconds(
    cfg: CfgNode,
    steps: int = 3,
    warm_up: int = 1,
    clock: Callable[[], float] = time.perf_counter,
    progress: float = 1.0,
) -> list[float]:
    """Return the seconds of training steps, including loading, after `warm_up` steps.

    The images have the size of INPUT at `progress`, a fraction of the run.
    The weights are random, since a step takes equally long with others. After 15 seconds no further
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
    batches = iter(build_train_loader(cfg, train_set, 0, progress))
    seconds: list[float] = []
    while len(seconds) < steps + warm_up and sum(seconds) < _MAX_SECONDS:
        start = clock()
        train_step(*next(batches))
        if model.device.type != "cpu":
            torch.accelerator.synchronize()
        seconds.append(clock() - start)
    return seconds[warm_up:] or seconds[-1:]
