"""Warning if other programs slow down a training."""

import logging

from detlite.distributed import world_size
from detlite.threads import OtherPrograms

from .base import Hook

logger = logging.getLogger(__name__)


class MachineLoad(Hook):
    """Warns once if other programs use cores that a single process on the CPU needs."""

    def before_train(self) -> None:
        on_cpu = self.trainer.model.device.type == "cpu" and world_size() == 1
        self._others = OtherPrograms() if on_cpu else None

    def after_log(self, metrics: dict[str, float]) -> None:
        if self._others and (problem := self._others.problem("training")):
            logger.warning("%s", problem)
            self._others = None
