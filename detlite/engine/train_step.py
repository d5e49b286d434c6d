"""Training step: forward, backward and optimizer update."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from yacs.config import CfgNode

from detlite.config import ConfigError
from detlite.distributed import data_parallel, world_size
from detlite.modeling.compilation import explain_compiler_errors
from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.precision import autocast


class TrainStep:
    """Updates a model on one batch; every process calls it with its share of the batch.

    With SOLVER.ACCUMULATION_STEPS, the batch passes through the model in that number of parts and
    their gradients are averaged, so a step needs the memory of one part. Batch statistics are
    computed per part.
    """

    def __init__(
        self, cfg: CfgNode, model: DetectionModel, optimizer: Optimizer, scaler: GradScaler
    ) -> None:
        solver = cfg.SOLVER
        self._dtype, self._device = cfg.DTYPE, model.device
        self._optimizer, self._scaler = optimizer, scaler
        self._parts, self._max_norm = solver.ACCUMULATION_STEPS, solver.CLIP_GRAD_NORM
        divisor = self._parts * world_size()
        if solver.IMS_PER_BATCH % divisor:
            raise ConfigError(
                f"SOLVER.IMS_PER_BATCH is {solver.IMS_PER_BATCH}, which cannot be divided equally "
                f"into SOLVER.ACCUMULATION_STEPS {self._parts} in {world_size()} processes: set a "
                f"multiple of {divisor}"
            )
        self._model = data_parallel(model)

    def __call__(self, images: list[Tensor], targets: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Update the weights, and return the scalar losses of the batch."""
        self._optimizer.zero_grad()
        totals: dict[str, Tensor] = {}
        size = len(images) // self._parts
        for start in range(0, len(images), size):
            part, is_last = slice(start, start + size), start + size == len(images)
            with self._synchronizing(is_last), explain_compiler_errors():
                with autocast(self._dtype, self._device):
                    losses = self._model(images[part], targets[part])
                total = torch.stack(list(losses.values())).sum()
                self._scaler.scale(total / self._parts).backward()
            for name, loss in losses.items():
                totals[name] = totals.get(name, 0.0) + loss.detach() / self._parts
        if self._max_norm > 0:
            self._scaler.unscale_(self._optimizer)
            clip_grad_norm_(self._model.parameters(), self._max_norm)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        return totals

    def _synchronizing(self, is_last: bool) -> Any:
        """Return a context in which only the last part averages gradients over processes."""
        if is_last or not isinstance(self._model, nn.parallel.DistributedDataParallel):
            return nullcontext()
        return self._model.no_sync()
