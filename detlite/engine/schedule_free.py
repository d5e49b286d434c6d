"""Schedule-free AdamW (https://arxiv.org/abs/2405.15682), from the package schedulefree.

It computes gradients at the weights y and averages the weights z that it updates. The averages x
are the result of a run. A model has the weights y, except in `averaged_weights`.
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
    """Build the optimizer for parameter groups; ConfigError if the package is missing."""
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
    """Give the model the averages x within a `with` block; do nothing for other optimizers.

    The weights y become part of the optimizer's state meanwhile, so that a checkpoint has them.
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
    """Give the model the weights y that the state of a schedule-free optimizer has."""
    for parameter, state in optimizer.state.items():
        if _TRAINED in state:
            parameter.copy_(state.pop(_TRAINED))
    for group in optimizer.param_groups:
        if "train_mode" in group:
            group["train_mode"] = True
