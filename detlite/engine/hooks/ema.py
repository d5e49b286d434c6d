"""The exponential moving average of a model's weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

OF_AVERAGE = " average"  # after a data set's name: the metrics of the average on it


class WeightAverage:
    """Follows the weights of a model in training, by `decay` of itself and 1 - `decay` of them.

    In the first steps it follows faster, by (1 + n) / (10 + n) after n of them, as in TensorFlow's
    ExponentialMovingAverage: it would stay near the initial weights. Buffers are averaged alike,
    those of integers copied.

    Attributes:
        values: the average by the names of the model's state dict.
        updates: n.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._model, self._decay = model, decay
        self.updates = 0
        self.values = {name: value.clone() for name, value in model.state_dict().items()}

    @torch.no_grad()
    def update(self) -> None:
        """Takes a step towards the weights as they are now."""
        decay = min(self._decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        weights = self._model.state_dict()
        means = [name for name, value in weights.items() if value.is_floating_point()]
        torch._foreach_lerp_(
            [self.values[name] for name in means], [weights[name] for name in means], 1 - decay
        )
        for name in weights.keys() - set(means):
            self.values[name].copy_(weights[name])

    @contextmanager
    def in_place_of_weights(self) -> Iterator[None]:
        """Within the block the model has the average as its weights."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` takes to go on."""
        return {"updates": self.updates, "values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts back what `state_dict` gave.

        Raises:
            KeyError, RuntimeError: it does not fit the model.
        """
        for name, value in self.values.items():
            value.copy_(state["values"][name])
        self.updates = state["updates"]

    @torch.no_grad()
    def _exchange(self) -> None:
        weights: dict[str, Tensor] = self._model.state_dict()
        for name, average in self.values.items():
            weight = weights[name].clone()
            weights[name].copy_(average)
            average.copy_(weight)
