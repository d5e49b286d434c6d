"""Freeze the backbone in the first iterations."""

import logging

from detlite.modeling.detection_model import DetectionModel

from .base import Hook

logger = logging.getLogger(__name__)


class BackboneFreezeSchedule(Hook):
    """Freezes the backbone, without its neck, in the first iterations of a run.

    Frozen parameters need no gradient, so the optimizer changes neither them nor their momentum.
    Frozen modules are in evaluation mode, so batch norm keeps its statistics. Parameters that are
    never trained (MODEL.BACKBONE.FREEZE_CONV_BODY_AT) stay frozen afterwards.
    """

    def __init__(self, model: DetectionModel, iterations: int) -> None:
        self._iterations = iterations
        self._backbone = model.backbone.body
        self._parameters = [p for p in self._backbone.parameters() if p.requires_grad]
        self._frozen = False
        self.update(0)

    def before_step(self) -> None:
        if self.update(self.trainer.iteration - 1):
            self.trainer.train_step.wrap_model()

    def update(self, done: int) -> bool:
        """Freeze or unfreeze the backbone for the step that follows `done` finished iterations.

        Call it before every step, because an evaluation puts all modules back into training mode.
        It returns True if the set of trainable parameters has changed.
        """
        frozen = done < self._iterations
        if frozen:
            self._backbone.eval()
        if frozen == self._frozen:
            return False
        self._frozen = frozen
        for parameter in self._parameters:
            parameter.requires_grad_(not frozen)
        if not frozen:
            self._backbone.train()
            logger.info("the backbone is trained from iteration %d on", done + 1)
        return True
