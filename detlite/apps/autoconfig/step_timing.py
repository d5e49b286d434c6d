"""How long a training step of a config takes on its own data."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable

import torch
from yacs.config import CfgNode

from detlite.data import build_train_dataset, build_train_loader
from detlite.engine.checkpointer import build_state
from detlite.engine.hooks.freezing import with_norms_by_batch
from detlite.engine.rng import seed_all
from detlite.engine.run_length import Budget
from detlite.modeling import build_model

_LEAST_PICTURES = 8  # as their sizes differ, and how many objects they have


def mean_step_seconds(cfg: CfgNode) -> float:
    """The mean of three training steps, or of as many more as eight pictures take."""
    return statistics.mean(
        step_seconds(cfg, max(3, math.ceil(_LEAST_PICTURES / cfg.SOLVER.IMS_PER_BATCH)))
    )


def step_seconds(
    cfg: CfgNode, steps: int = 3, warm_up: int = 1, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Seconds of each of the first training steps, their loading included.

    The weights are random ones: a step takes as long with others. Nothing is written.

    Args:
        cfg: of a run, all of whose keys are obeyed.
        steps: that count.
        warm_up: steps before them, which do not.
        clock: what times are read from.
    """
    seed_all(cfg.SEED, cfg.SOLVER.DETERMINISTIC)
    cfg = with_norms_by_batch(cfg)
    train_set = build_train_dataset(cfg)
    model = build_model(cfg)
    model.categories = train_set.categories
    model.train()
    _, step = build_state(cfg, model, Budget(cfg.SOLVER.MAX_ITER or steps + warm_up))
    batches = iter(build_train_loader(cfg, train_set, 0))
    seconds = []
    for done in range(steps + warm_up):
        start = clock()
        step(done, *next(batches))
        if model.device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(clock() - start)
    return seconds[warm_up:]
