"""Exponential moving average (EMA) of the weights."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from detlite.engine.trainer import Hook


class ModelEMA(Hook):
    """Exponential moving average of a model's weights, updated after each step.

    average <- d * average + (1 - d) * weights, with d = min(decay, (1 + n) / (10 + n)) after n
    updates, as in TensorFlow's ExponentialMovingAverage: early averages would otherwise stay near
    the initial weights. Floating-point buffers are averaged too, integer buffers are copied.

    Attributes:
        values: averaged weights by the names of the model's state dict.
        updates: number of updates n.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._model, self._decay = model, decay
        self.updates = 0
        self.values = {name: value.clone() for name, value in model.state_dict().items()}

    def before_train(self) -> None:
        if not self.updates:  # the run starts, or resumes from a checkpoint without averages
            for name, value in self._model.state_dict().items():
                self.values[name].copy_(value)

    @torch.no_grad()
    def after_step(self, losses: dict[str, Tensor]) -> None:
        """Move the average towards the current weights."""
        decay = min(self._decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        weights = self._model.state_dict()
        averaged = [name for name, value in weights.items() if value.is_floating_point()]
        torch._foreach_lerp_(
            [self.values[name] for name in averaged],
            [weights[name] for name in averaged],
            1 - decay,
        )
        for name in weights.keys() - set(averaged):
            self.values[name].copy_(weights[name])

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Use the averaged weights in the model within a `with` block."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in self.values.items():
            value.copy_(state["values"][name])
        self.updates = state["updates"]

    @torch.no_grad()
    def _swap(self) -> None:
        weights: dict[str, Tensor] = self._model.state_dict()
        for name, average in self.values.items():
            weight = weights[name].clone()
            weights[name].copy_(average)
            average.copy_(weight)


def find_average(hooks: Sequence[Hook]) -> ModelEMA | None:
    """Return the hook with the averaged weights of a run, if it averages them."""
    return next((hook for hook in hooks if isinstance(hook, ModelEMA)), None)
