"""Freeze the backbone in the first iterations, and batch norm layers that see few images."""

import logging
from collections.abc import Mapping
from typing import Any

from torch import nn
from yacs.config import CfgNode

from detlite.distributed import world_size
from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.layers.norm import FrozenBatchNorm2d

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
        self._backbone = model.backbone.body if iterations else nn.Module()
        self._parameters = [p for p in self._backbone.parameters() if p.requires_grad]
        self._frozen = False

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


def resolve_frozen_norms(cfg: CfgNode, resumed: Mapping[str, Any] | None = None) -> CfgNode:
    """Freeze the backbone's batch norm in the config if it would see too few images.

    The limit is MODEL.BACKBONE.FREEZE_NORM_BELOW images per forward pass. It is resolved once,
    before training, because a later evaluation on another machine must build the same model. The
    choice of a `resumed` config, whose keys are given, is kept with any number of processes.
    """
    limit = cfg.MODEL.BACKBONE.FREEZE_NORM_BELOW
    stored = resumed if resumed and limit > 0 else {}
    cfg = cfg.clone()
    cfg.defrost()
    resnets, timm, freeze = cfg.MODEL.RESNETS, cfg.MODEL.TIMM, False
    in_all = cfg.SOLVER.IMS_PER_BATCH // cfg.SOLVER.ACCUMULATION_STEPS
    images = {"BN": in_all // world_size(), "SyncBN": in_all}
    if stored:
        resnets.NORM = stored.get("MODEL.RESNETS.NORM", resnets.NORM)
        timm.FROZEN_NORM = stored.get("MODEL.TIMM.FROZEN_NORM", timm.FROZEN_NORM)
    elif cfg.MODEL.BACKBONE.CONV_BODY.startswith("timm/"):
        freeze = not timm.FROZEN_NORM and images["BN"] < limit
        timm.FROZEN_NORM |= freeze
    elif images.get(resnets.NORM, limit) < limit:
        resnets.NORM, freeze = "FrozenBN", True
    cfg.freeze()
    if freeze:
        logger.info(
            "the backbone's batch norm is frozen: it would see fewer images per forward pass than "
            "MODEL.BACKBONE.FREEZE_NORM_BELOW (%d)", limit,
        )  # fmt: skip
    return cfg


def warn_of_frozen_layers(cfg: CfgNode, model: nn.Module, iterations: int | None) -> None:
    """Log a warning if the backbone, or its random batch norm, is not trained in a run at all."""
    frozen = cfg.SOLVER.BACKBONE_FREEZE_ITERS
    if iterations is not None and iterations <= frozen:
        logger.warning(
            "SOLVER.BACKBONE_FREEZE_ITERS is %d and the run has %d iterations: the backbone is "
            "not trained at all", frozen, iterations,
        )  # fmt: skip
    norms = any(isinstance(module, FrozenBatchNorm2d) for module in model.modules())
    if norms and not cfg.MODEL.WEIGHT:
        timm = cfg.MODEL.BACKBONE.CONV_BODY.startswith("timm/")
        key = "MODEL.TIMM.FROZEN_NORM False" if timm else "MODEL.RESNETS.NORM BN or GN"
        logger.warning(
            "batch norm is frozen, but MODEL.WEIGHT is empty: a backbone with random weights "
            "hardly trains without batch statistics. Set %s to train from scratch", key
        )  # fmt: skip
