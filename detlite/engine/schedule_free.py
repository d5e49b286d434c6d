"""Schedule-free AdamW (https://arxiv.org/abs/2405.15682), from the package schedulefree.

It computes gradients at the weights y, updates the weights z, and averages z to the weights x. The
result of a run is x. During training, the model contains y.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import Optimizer

from detlite.config import ConfigError

# Counters of the optimizer, which a resumed run continues.
PROGRESS = frozenset({"k", "lr_max", "weight_sum"})
_TRAINED = "trained"  # y in the state of a parameter while the model has x


def build_schedule_free(
    groups: list[dict[str, Any]], lr: float, momentum: float, schedule: str
) -> Optimizer:
    """Build the optimizer.

    Args:
        groups: parameter groups, each with its learning rate and weight decay.
        lr: learning rate of groups without one.
        momentum: weight of x in y = (1 - momentum) z + momentum x, in [0, 1).
        schedule: SOLVER.LR_SCHEDULE.

    Raises:
        ConfigError: the schedule is not constant, or the package is not installed.
    """
    if schedule != "constant":
        raise ConfigError(
            f"SOLVER.LR_SCHEDULE is {schedule}, but ScheduleFreeAdamW needs a constant learning "
            "rate: set SOLVER.LR_SCHEDULE constant"
        )
    try:
        from schedulefree import AdamWScheduleFree
    except ImportError as error:
        raise ConfigError(
            "SOLVER.OPTIMIZER ScheduleFreeAdamW needs a package: pip install schedulefree"
        ) from error
    optimizer: Optimizer = AdamWScheduleFree(groups, lr=lr, betas=(momentum, 0.999))
    restore_trained_weights(optimizer)
    return optimizer


@contextmanager
def averaged_weights(optimizer: Optimizer) -> Iterator[None]:
    """Use the averages x in the model within a `with` block, to evaluate or save it.

    Meanwhile, the optimizer's state contains the weights y, so that they are part of a checkpoint.
    Afterwards the model has exactly the same y again. Other optimizers are not changed.
    """
    if not hasattr(optimizer, "eval"):
        yield
        return
    for parameter, state in optimizer.state.items():
        state[_TRAINED] = parameter.detach().clone()
    optimizer.eval()
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
