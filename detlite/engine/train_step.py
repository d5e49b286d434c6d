"""One training step: forward, backward, and the optimizer."""

from __future__ import annotations

import gc
import logging
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from yacs.config import CfgNode

from detlite.config import ConfigError
from detlite.distributed import any_process, data_parallel, world_size
from detlite.modeling.detector import Detector
from detlite.modeling.precision import autocast

from .hooks.ema import WeightAverage
from .hooks.freezing import FrozenStart
from .hooks.metrics import NonFiniteLossError

logger = logging.getLogger(__name__)


class TrainingStep:
    """Updates a model by a batch, as SOLVER says; every process calls it for its part.

    With SOLVER.ACCUMULATION_STEPS the batch goes through the model in so many parts, one after the
    other, whose gradients are averaged: a step takes the memory of one part. Batch statistics are
    those of a part.

    In the first SOLVER.BACKBONE_FREEZE_ITERS steps the body is left as it is; `optimizer` has its
    parameters all the same.

    Attributes:
        skipped: how many steps were left out because of losses that are not finite.

    Raises:
        ConfigError: a batch that cannot be parted equally.
    """

    def __init__(
        self,
        cfg: CfgNode,
        model: Detector,
        optimizer: Optimizer,
        scaler: torch.amp.GradScaler,
        average: WeightAverage | None,
    ) -> None:
        solver = cfg.SOLVER
        self.skipped = 0
        self._detector = model
        self._optimizer, self._scaler = optimizer, scaler
        self._average = average
        self._dtype, self._device = cfg.DTYPE, model.device
        self._parts = solver.ACCUMULATION_STEPS
        self._largest_norm = solver.CLIP_GRAD_NORM
        self._most_skipped = solver.MAX_SKIPPED_STEPS
        if solver.IMS_PER_BATCH % (self._parts * world_size()):
            raise ConfigError(
                f"SOLVER.IMS_PER_BATCH is {solver.IMS_PER_BATCH}, which SOLVER.ACCUMULATION_STEPS "
                f"{self._parts} in {world_size()} processes cannot part equally: make it a "
                f"multiple of {self._parts * world_size()}"
            )
        self._frozen_start = FrozenStart(model, solver.BACKBONE_FREEZE_ITERS)
        self._frozen_start.update(0)
        self._model: Any = data_parallel(model)

    def __call__(
        self, done: int, images: list[Tensor], targets: list[dict[str, Any]]
    ) -> dict[str, Tensor]:
        """The losses of the batch, after which the weights are those of the next step.

        Nothing, and nothing has changed, when a loss is not finite in any process and
        SOLVER.MAX_SKIPPED_STEPS lets the step be skipped.

        Args:
            done: iterations that are finished.

        Raises:
            NonFiniteLossError: more steps would have to be skipped.
        """
        if self._frozen_start.update(done):
            # Which gradients travel is fixed when it is made; the old one lets go of them first.
            self._optimizer.zero_grad()
            self._model = None
            gc.collect()
            self._model = data_parallel(self._detector)
        # Batch norm has seen a batch before its losses are known.
        buffers = [b.clone() for b in self._model.buffers()] if self._most_skipped else []
        self._optimizer.zero_grad()
        totals: dict[str, Tensor] = {}
        size = len(images) // self._parts
        for start in range(0, len(images), size):
            part = slice(start, start + size)
            last = start + size == len(images)
            parallel = isinstance(self._model, nn.parallel.DistributedDataParallel)
            # Gradients travel once, with the last part.
            with self._model.no_sync() if parallel and not last else nullcontext():
                with autocast(self._dtype, self._device):
                    losses = self._model(images[part], targets[part])
                stacked = torch.stack(list(losses.values()))
                if self._most_skipped and any_process(not bool(stacked.isfinite().all())):
                    self._skip(buffers, targets)
                    return {}
                self._scaler.scale(stacked.sum() / self._parts).backward()
            for name, loss in losses.items():
                totals[name] = totals.get(name, 0.0) + loss.detach() / self._parts
        if self._largest_norm > 0:
            self._scaler.unscale_(self._optimizer)
            clip_grad_norm_(self._model.parameters(), self._largest_norm)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        if self._average:
            self._average.update()
        return totals

    def _skip(self, buffers: Sequence[Tensor], targets: Sequence[dict[str, Any]]) -> None:
        for buffer, before in zip(self._model.buffers(), buffers, strict=True):
            buffer.copy_(before)
        self._optimizer.zero_grad()
        ids = [target["image_id"] for target in targets]
        if self.skipped == self._most_skipped:
            raise NonFiniteLossError(
                f"the loss is not finite on images {ids} or those of another process, and "
                f"SOLVER.MAX_SKIPPED_STEPS {self._most_skipped} steps were skipped before"
            )
        self.skipped += 1
        logger.warning(
            "skipped a step, number %d of at most %d: the loss is not finite on images %s or those "
            "of another process",
            self.skipped, self._most_skipped, ids,
        )  # fmt: skip
