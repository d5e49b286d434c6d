"""Optimizers and learning-rate schedules."""

import logging
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from yacs.config import CfgNode

from detlite.config import ConfigError
from detlite.modeling.backbone import Backbone
from detlite.modeling.layers.norm import FrozenBatchNorm2d, LevelBatchNorm
from detlite.registry import Registry

from .schedule import Schedule
from .schedule_free import build_schedule_free

logger = logging.getLogger(__name__)

# Builders (cfg, parameter groups, each with its learning rate and weight decay) of optimizers.
BuildOptimizer = Callable[[CfgNode, list[dict[str, Any]]], torch.optim.Optimizer]
OPTIMIZERS: Registry[BuildOptimizer] = Registry("optimizer")
OPTIMIZERS.register("ScheduleFreeAdamW")(build_schedule_free)

MAX_WARMUP = 0.1  # fraction of a run whose length is not given in iterations
_NORM_LAYERS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, LevelBatchNorm)


def build_optimizer(cfg: CfgNode, model: nn.Module) -> torch.optim.Optimizer:
    """Build SOLVER.OPTIMIZER for the trainable parameters of a model.

    Learning rates are relative to SOLVER.BASE_LR:

    - Biases, also in normalization layers, have BIAS_LR_FACTOR times the learning rate and
      the weight decay WEIGHT_DECAY_BIAS. Scales of normalization layers have WEIGHT_DECAY_NORM.
    - The backbone without its neck has LAYER_DECAY to the power of n times in its n-th layer before
      the neck, as in ViTDet (https://arxiv.org/abs/2203.16527).

    The first parameter group has SOLVER.BASE_LR if any group has.
    """
    groups = _parameter_groups(cfg, model)
    if not groups:
        raise ConfigError(
            "the model has no trainable parameters: lower MODEL.BACKBONE.FREEZE_CONV_BODY_AT"
        )
    return OPTIMIZERS.get(cfg.SOLVER.OPTIMIZER, "SOLVER.OPTIMIZER")(cfg, groups)


# Fused optimizers are faster. But if the gradient scaler of float16 skips the first step after an
# overflow, which is common, torch's fused SGD uses momentum that was never initialized.
@OPTIMIZERS.register("SGD", "FusedSGD")  # FusedSGD, once a class of NVIDIA's apex, is the same
def _build_sgd(cfg: CfgNode, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    solver, fused = cfg.SOLVER, cfg.DTYPE != "float16"
    return torch.optim.SGD(groups, lr=solver.BASE_LR, momentum=solver.MOMENTUM, fused=fused)


@OPTIMIZERS.register("AdamW")
def _build_adamw(cfg: CfgNode, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    solver, betas, fused = cfg.SOLVER, (cfg.SOLVER.MOMENTUM, 0.999), cfg.DTYPE != "float16"
    return torch.optim.AdamW(groups, lr=solver.BASE_LR, betas=betas, fused=fused)


def warn_of_frozen_norms(cfg: CfgNode, model: nn.Module) -> None:
    """Log a warning if batch norm with random weights is not trained."""
    if cfg.MODEL.WEIGHT or not any(isinstance(m, FrozenBatchNorm2d) for m in model.modules()):
        return
    timm = cfg.MODEL.BACKBONE.CONV_BODY.startswith("timm/")
    norms = "BN" if timm else "BN or GN"
    logger.warning(
        "batch norm is frozen, but MODEL.WEIGHT is empty: a backbone with random weights "
        "hardly trains without batch statistics. Set MODEL.RESNETS.NORM %s to train from scratch",
        norms,
    )  # fmt: skip


def build_scheduler(
    cfg: CfgNode, optimizer: torch.optim.Optimizer, schedule: Schedule, done: int = 0
) -> LambdaLR:
    """Build the learning rate schedule: warm-up times multi-step, half a cosine to 0, or 1.

    It is a function of the number of finished iterations, `done` of a resumed run, and of the
    finished fraction of the run.
    """
    solver, steps, max_iter = cfg.SOLVER, cfg.SOLVER.STEPS, schedule.max_iter
    if solver.LR_SCHEDULE == "multistep":
        _check_steps(steps, max_iter)
    if not schedule.shortens_warmup and max_iter is not None and max_iter <= solver.WARMUP_ITERS:
        logger.warning(
            "SOLVER.WARMUP_ITERS is %d and the run has %d iterations: the learning rate never "
            "reaches SOLVER.BASE_LR %g. Set SOLVER.WARMUP_ITERS %d",
            solver.WARMUP_ITERS, max_iter, solver.BASE_LR, int(MAX_WARMUP * max_iter),
        )  # fmt: skip

    def factor(iteration: int) -> float:
        fraction = schedule.fraction(iteration)
        if solver.LR_SCHEDULE == "cosine":
            scale = 0.5 * (1 + math.cos(math.pi * fraction))
        elif solver.LR_SCHEDULE == "constant":
            scale = 1.0
        else:
            progress = fraction if _are_fractions(steps) else iteration
            scale = solver.GAMMA ** bisect_right(steps, progress)
        warm = iteration / solver.WARMUP_ITERS if solver.WARMUP_ITERS else 1.0
        if schedule.shortens_warmup:
            warm = max(warm, fraction / MAX_WARMUP)
        if warm < 1:
            done = warm if solver.WARMUP_METHOD == "linear" else 0.0
            scale *= solver.WARMUP_FACTOR * (1 - done) + done
        return scale

    for group in optimizer.param_groups:
        group.setdefault("initial_lr", group["lr"])
    return LambdaLR(optimizer, factor, last_epoch=done - 1)


def _are_fractions(steps: Sequence[float]) -> bool:
    return all(step < 1 for step in steps)


def _check_steps(steps: Sequence[float], max_iter: int | None) -> None:
    if _are_fractions(steps):
        return
    if max_iter is None:
        raise ConfigError(
            f"SOLVER.STEPS {steps} are iterations, but SOLVER.MAX_MINUTES limits the time: "
            "set fractions of the run, such as (0.7, 0.9), or SOLVER.LR_SCHEDULE cosine"
        )
    if steps[-1] >= max_iter:
        exceed = "SOLVER.STEPS %s exceed the run's %d iterations: later steps have no effect"
        logger.warning(exceed, steps, max_iter)


def _parameter_groups(cfg: CfgNode, model: nn.Module) -> list[dict]:
    """Group trainable parameters by learning rate and weight decay."""
    solver, factors = cfg.SOLVER, _backbone_lr_factors(cfg, model)
    groups: dict[tuple[float, float], list[tuple[str, nn.Parameter]]] = {}
    seen: set[nn.Parameter] = set()
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter in seen or not parameter.requires_grad:
                continue
            seen.add(parameter)
            lr, decay = solver.BASE_LR * factors.get(parameter, 1.0), solver.WEIGHT_DECAY
            if name.endswith("bias"):
                lr, decay = lr * solver.BIAS_LR_FACTOR, solver.WEIGHT_DECAY_BIAS
            elif isinstance(module, _NORM_LAYERS):
                decay = decay if solver.WEIGHT_DECAY_NORM is None else solver.WEIGHT_DECAY_NORM
            groups.setdefault((lr, decay), []).append((f"{path}.{name}", parameter))
    # The learning rate of the first group is logged.
    ordered = sorted(groups.items(), key=lambda group: group[0][0] != solver.BASE_LR)
    return [
        {"params": parameters, "lr": lr, "weight_decay": decay}
        for (lr, decay), parameters in ordered
    ]


def _backbone_lr_factors(cfg: CfgNode, model: nn.Module) -> dict[nn.Parameter, float]:
    """Return the factors of the learning rates of the backbone's parameters, without its neck."""
    decay = cfg.SOLVER.LAYER_DECAY
    if decay == 1:
        return {}
    backbone = model.get_submodule("backbone")
    assert isinstance(backbone, Backbone)
    from_neck = enumerate(reversed(backbone.layers()), start=1)
    return {parameter: decay**number for number, layer in from_neck for parameter in layer}
