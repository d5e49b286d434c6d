"""Schedule-free AdamW (https://arxiv.org/abs/2405.15682), from the package schedulefree.

It computes gradients at the weights y, updates the weights z, and averages z to the weights x. The
result of a run is x. During training, the model contains y. The statistics of batch norm are those
of y, which is close to x: recomputing them did not raise AP
(benchmarks/results/recipes/schedule_free.md).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import Optimizer
from yacs.config import CfgNode

from detlite.config import ConfigError

# Counters of the optimizer, which a resumed run continues.
PROGRESS = frozenset({"k", "lr_max", "weight_sum"})
_TRAINED = "trained"  # y in the state of a parameter while the model has x


def build_schedule_free(cfg: CfgNode, groups: list[dict[str, Any]]) -> Optimizer:
    """Build the optimizer of parameter groups, each with its learning rate and weight decay.

    y is (1 - SOLVER.MOMENTUM) z + SOLVER.MOMENTUM x.

    Raises:
        ConfigError: the package is not installed.
    """
    try:
        from schedulefree import AdamWScheduleFree
    except ImportError as error:
        raise ConfigError(
            "SOLVER.OPTIMIZER ScheduleFreeAdamW needs a package: pip install schedulefree"
        ) from error
    lr, betas = cfg.SOLVER.BASE_LR, (cfg.SOLVER.MOMENTUM, 0.999)
    optimizer: Optimizer = AdamWScheduleFree(groups, lr=lr, betas=betas)
    restore_trained_weights(optimizer)
    return optimizer


@contextmanager
def averaged_weights(optimizer: Optimizer) -> Iterator[None]:
    """Use the averages x in the model within a `with` block, to evaluate or save it.

    Meanwhile, the optimizer's state contains the weights y, so that they are part of a checkpoint.
    Afterwards the model has exactly the same y again. Other optimizers are not changed.
    """
    if not any(group.get("train_mode") for group in optimizer.param_groups):
        yield  # of another optimizer, or the model has the averages already
        return
    for parameter, state in optimizer.state.items():
        state[_TRAINED] = parameter.detach().clone()
    optimizer.eval()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        restore_trained_weights(optimizer)


@torch.no_grad()
def restore_trained_weights(optimizer: Optimizer) -> None:
    """Move the weights y from a schedule-free optimizer's state into the model, to train it."""
    for parameter, state in optimizer.state.items():
        if _TRAINED in state:
            parameter.copy_(state.pop(_TRAINED))
    for group in optimizer.param_groups:
        if "train_mode" in group:
            group["train_mode"] = True
