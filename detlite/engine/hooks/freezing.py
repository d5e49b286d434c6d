"""What is not trained: the body at the start of a run, and norms that see too few images."""

from __future__ import annotations

import logging

from torch import nn
from yacs.config import CfgNode

from detlite.config.loading import flatten
from detlite.conversion.checkpoint.files import Checkpoint
from detlite.conversion.checkpoint.loading import config_of
from detlite.distributed import world_size
from detlite.modeling.detector import Detector

logger = logging.getLogger(__name__)


class FrozenStart:
    """Keeps the body of a detector as it is for the first iterations of a run.

    Its parameters need no gradient meanwhile, so that no optimizer touches them or their momentum,
    and its modules are in evaluation mode: batch norm keeps its statistics. What is never trained
    (FREEZE_CONV_BODY_AT) stays so.

    Args:
        model: as it will be trained afterwards.
        iterations: 0: the body is trained from the start.
    """

    def __init__(self, model: Detector, iterations: int) -> None:
        self._iterations = iterations
        self._body = model.backbone.body if iterations else nn.Module()
        self._parameters = [p for p in self._body.parameters() if p.requires_grad]
        self._frozen = False

    def update(self, done: int) -> bool:
        """Prepares the step that follows on `done` iterations, and says if others are trained now.

        To be called before each step: evaluations put a model back into training mode as a whole.
        """
        frozen = done < self._iterations
        if frozen:
            self._body.eval()
        if frozen == self._frozen:
            return False
        self._frozen = frozen
        for parameter in self._parameters:
            parameter.requires_grad_(not frozen)
        if not frozen:
            self._body.train()
            logger.info("the body is trained from iteration %d on", done + 1)
        return True


def with_norms_by_batch(cfg: CfgNode, before: Checkpoint | None = None) -> CfgNode:
    """The config that says whether the batch norm of the body is frozen, by FREEZE_NORM_BELOW.

    It is resolved once, before training: the model that is evaluated later, on another machine, is
    built by the same words. So is a run that goes on from the checkpoint `before`, in whatever
    number of processes.
    """
    if before and (stored := dict(flatten(config_of(before) or {}))):
        cfg = cfg.clone()
        cfg.defrost()
        cfg.MODEL.RESNETS.NORM = stored.get("MODEL.RESNETS.NORM", cfg.MODEL.RESNETS.NORM)
        frozen = stored.get("MODEL.TIMM.FROZEN_NORM", cfg.MODEL.TIMM.FROZEN_NORM)
        cfg.MODEL.TIMM.FROZEN_NORM = frozen
        cfg.freeze()
        return cfg
    least = cfg.MODEL.BACKBONE.FREEZE_NORM_BELOW
    parts = cfg.SOLVER.ACCUMULATION_STEPS
    in_all = cfg.SOLVER.IMS_PER_BATCH // parts
    in_one = in_all // world_size()
    cfg = cfg.clone()
    cfg.defrost()
    if cfg.MODEL.BACKBONE.CONV_BODY.startswith("timm/"):
        freezes = not cfg.MODEL.TIMM.FROZEN_NORM and in_one < least
        cfg.MODEL.TIMM.FROZEN_NORM |= freezes
    else:
        seen = {"BN": in_one, "SyncBN": in_all}
        freezes = seen.get(cfg.MODEL.RESNETS.NORM, least) < least
        if freezes:
            cfg.MODEL.RESNETS.NORM = "FrozenBN"
    cfg.freeze()
    if freezes:
        logger.info(
            "the batch norm of the body is frozen: it would see fewer images at once than "
            "MODEL.BACKBONE.FREEZE_NORM_BELOW %d", least,
        )  # fmt: skip
    return cfg
