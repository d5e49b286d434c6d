"""Training step: forward, backward and optimizer update."""

import gc
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from yacs.config import CfgNode

from detlite.config import ConfigError
from detlite.distributed import any_process, data_parallel, world_size
from detlite.errors import NonFiniteLossError
from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.precision import autocast

logger = logging.getLogger(__name__)


class TrainStep:
    """Updates a model on one batch; every process calls it with its share of the batch.

    With SOLVER.ACCUMULATION_STEPS, the batch passes through the model in that number of parts and
    their gradients are averaged, so a step needs the memory of one part. Batch statistics are
    computed per part.

    Attributes:
        skipped: number of steps skipped so far because a loss was not finite.
    """

    def __init__(
        self,
        cfg: CfgNode,
        model: DetectionModel,
        optimizer: Optimizer,
        scaler: torch.amp.GradScaler,
    ) -> None:
        solver = cfg.SOLVER
        self.skipped = 0
        self._cfg, self._detector, self._optimizer, self._scaler = cfg, model, optimizer, scaler
        self._parts, self._max_skipped = solver.ACCUMULATION_STEPS, solver.MAX_SKIPPED_STEPS
        divisor = self._parts * world_size()
        if solver.IMS_PER_BATCH % divisor:
            raise ConfigError(
                f"SOLVER.IMS_PER_BATCH is {solver.IMS_PER_BATCH}, which cannot be divided equally "
                f"into SOLVER.ACCUMULATION_STEPS {self._parts} in {world_size()} processes: set a "
                f"multiple of {divisor}"
            )
        self._model: Any = data_parallel(model)
        self._explaining_errors: Callable[[], AbstractContextManager[None]] = nullcontext
        if cfg.MODEL.COMPILE:
            from detlite.modeling.compilation import explain_compiler_errors

            self._explaining_errors = explain_compiler_errors

    def wrap_model(self) -> None:
        """Wrap the model for data-parallel training again, after its trainable parameters changed.

        DDP fixes its set of gradients at construction, so release the old wrapper first.
        """
        self._optimizer.zero_grad()
        self._model = None
        gc.collect()
        self._model = data_parallel(self._detector)

    def __call__(self, images: list[Tensor], targets: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Update the weights, and return the scalar losses of the batch.

        They are empty if a loss is not finite in any process and the step was skipped, as
        SOLVER.MAX_SKIPPED_STEPS allows; the model is then unchanged.
        """
        # Batch norm updates its statistics before the losses are known.
        buffers = [b.clone() for b in self._model.buffers()] if self._max_skipped else []
        self._optimizer.zero_grad()
        totals: dict[str, Tensor] = {}
        size = len(images) // self._parts
        for start in range(0, len(images), size):
            part = slice(start, start + size)
            last = start + size == len(images)
            parallel = isinstance(self._model, nn.parallel.DistributedDataParallel)
            # Synchronize gradients once, with the last part.
            synchronizing = self._model.no_sync() if parallel and not last else nullcontext()
            with synchronizing, self._explaining_errors():
                with autocast(self._cfg.DTYPE, self._detector.device):
                    losses = self._model(images[part], targets[part])
                stacked = torch.stack(list(losses.values()))
                if self._max_skipped and any_process(not bool(stacked.isfinite().all())):
                    self._skip(buffers, targets)
                    return {}
                self._scaler.scale(stacked.sum() / self._parts).backward()
            for name, loss in losses.items():
                totals[name] = totals.get(name, 0.0) + loss.detach() / self._parts
        if self._cfg.SOLVER.CLIP_GRAD_NORM > 0:
            self._scaler.unscale_(self._optimizer)
            clip_grad_norm_(self._model.parameters(), self._cfg.SOLVER.CLIP_GRAD_NORM)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        return totals

    def _skip(self, buffers: Sequence[Tensor], targets: Sequence[dict[str, Any]]) -> None:
        """Restore the buffers, and count the skipped step."""
        for buffer, before in zip(self._model.buffers(), buffers, strict=True):
            buffer.copy_(before)
        self._optimizer.zero_grad()
        image_ids = [target["image_id"] for target in targets]
        where = f"on images {image_ids} or images of other processes"
        if self.skipped == self._max_skipped:
            raise NonFiniteLossError(
                f"the loss is not finite {where}, and {self.skipped} steps were already skipped, "
                "the limit SOLVER.MAX_SKIPPED_STEPS."
            )
        self.skipped += 1
        logger.warning(
            "skipped step %d of at most %d: the loss is not finite %s",
            self.skipped, self._max_skipped, where,
        )  # fmt: skip
