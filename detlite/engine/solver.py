"""Optimizers and learning-rate schedules."""

from __future__ import annotations

import logging
import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from yacs.config import CfgNode

from detlite.config import ConfigError
from detlite.modeling.backbone import Backbone
from detlite.modeling.layers.norm import LevelBatchNorm

from .hooks.run_length import Budget

logger = logging.getLogger(__name__)

LONGEST_WARM_UP = 0.1  # share of a run whose iterations are not stated
_NORM_LAYERS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, LevelBatchNorm)


def build_optimizer(cfg: CfgNode, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer that SOLVER.OPTIMIZER names, over the trainable parameters of `model`.

    Biases (those of normalisation layers too) have a learning rate BIAS_LR_FACTOR times the base
    and the decay WEIGHT_DECAY_BIAS; scales of normalisation layers decay by WEIGHT_DECAY_NORM.
    The rates of the body are BACKBONE_LR_FACTOR times those of the rest and, n layers before the
    neck, LAYER_DECAY^n times, as in ViTDet (https://arxiv.org/abs/2203.16527), n being 1 for the
    last. The rate of the first group is the base rate, if any group has it.

    Raises:
        ConfigError: SOLVER.OPTIMIZER cannot be had, or nothing is left to train.
    """
    groups = _parameter_groups(cfg, model)
    if not groups:
        raise ConfigError("the model has no trainable parameter; see FREEZE_CONV_BODY_AT")
    lr, momentum = base_lr(cfg), cfg.SOLVER.MOMENTUM
    if cfg.SOLVER.AUTO_SCALE_LR:
        logger.info(
            "SOLVER.AUTO_SCALE_LR: BASE_LR %g for a reference batch of %d, times %g for one of %d: "
            "%g",
            cfg.SOLVER.BASE_LR, cfg.SOLVER.REFERENCE_IMS_PER_BATCH, lr / cfg.SOLVER.BASE_LR,
            cfg.SOLVER.IMS_PER_BATCH, lr,
        )  # fmt: skip
    if cfg.SOLVER.OPTIMIZER == "FusedSGD":
        return _apex_fused_sgd(groups, lr, momentum)
    # Fused is one pass over the parameters instead of one for each term of the update. But when
    # the gradient scaler of float16 skips the first step for an overflow, as it often does,
    # torch's fused SGD is left with momentum that was never initialised.
    fused = cfg.DTYPE != "float16"
    if cfg.SOLVER.OPTIMIZER == "AdamW":
        return torch.optim.AdamW(groups, lr=lr, betas=(momentum, 0.999), fused=fused)
    # Nor can it begin the momentum of some parameters later than that of others.
    fused = fused and not cfg.SOLVER.BACKBONE_FREEZE_ITERS
    return torch.optim.SGD(groups, lr=lr, momentum=momentum, fused=fused)


def base_lr(cfg: CfgNode) -> float:
    """SOLVER.BASE_LR, scaled to the batch where SOLVER.AUTO_SCALE_LR says so (arXiv:1706.02677)."""
    solver = cfg.SOLVER
    scale = solver.IMS_PER_BATCH / solver.REFERENCE_IMS_PER_BATCH if solver.AUTO_SCALE_LR else 1.0
    return solver.BASE_LR * scale


def build_scheduler(cfg: CfgNode, optimizer: torch.optim.Optimizer, budget: Budget) -> LambdaLR:
    """The learning rate: warm-up, times multi-step or half a cosine down to 0.

    It is a function of the finished iterations and of the share of the run that they are, by
    `budget`.

    Raises:
        ConfigError: SOLVER.STEPS that do not rise, or are iterations where these are not known.
    """
    solver, steps = cfg.SOLVER, cfg.SOLVER.STEPS
    if solver.LR_SCHEDULE == "multistep":
        _check_steps(steps, budget.max_iter)

    def factor(iteration: int) -> float:
        share = budget.share(iteration)
        if solver.LR_SCHEDULE == "cosine":
            scale = 0.5 * (1 + math.cos(math.pi * share))
        else:
            scale = solver.GAMMA ** bisect_right(steps, share if _are_shares(steps) else iteration)
        warm = iteration / solver.WARMUP_ITERS if solver.WARMUP_ITERS else 1.0
        if budget.shortens_warm_up:
            warm = max(warm, share / LONGEST_WARM_UP)
        if warm < 1:
            done = warm if solver.WARMUP_METHOD == "linear" else 0.0
            scale *= solver.WARMUP_FACTOR * (1 - done) + done
        return scale

    return LambdaLR(optimizer, factor)


def _are_shares(steps: Sequence[float]) -> bool:
    return all(step < 1 for step in steps)


def _check_steps(steps: Sequence[float], max_iter: int | None) -> None:
    if any(later <= earlier for earlier, later in pairwise(steps)):
        raise ConfigError(f"SOLVER.STEPS {steps} must rise from one to the next")
    if _are_shares(steps):
        return
    if max_iter is None:
        raise ConfigError(
            f"SOLVER.STEPS {steps} are iterations, and how many there will be in "
            "SOLVER.MAX_MINUTES is not known: give them as shares of the run, such as (0.7, 0.9), "
            "or set SOLVER.LR_SCHEDULE cosine"
        )
    if 0 < steps[0] < 1:
        raise ConfigError(f"SOLVER.STEPS {steps} are shares of the run and iterations: give either")
    if steps[-1] >= max_iter:
        logger.warning(
            "SOLVER.STEPS %s reach beyond the run's %d iterations: the rate never falls that far",
            steps, max_iter,
        )  # fmt: skip


def _parameter_groups(cfg: CfgNode, model: nn.Module) -> list[dict]:
    """As few groups as there are (learning rate, weight decay) pairs, each parameter once."""
    solver = cfg.SOLVER
    of_body = _body_factors(cfg, model)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    seen: set[nn.Parameter] = set()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter in seen or not parameter.requires_grad:
                continue
            seen.add(parameter)
            lr, decay = base_lr(cfg) * of_body.get(parameter, 1.0), solver.WEIGHT_DECAY
            if name.endswith("bias"):
                lr, decay = lr * solver.BIAS_LR_FACTOR, solver.WEIGHT_DECAY_BIAS
            elif isinstance(module, _NORM_LAYERS):
                decay = decay if solver.WEIGHT_DECAY_NORM is None else solver.WEIGHT_DECAY_NORM
            groups.setdefault((lr, decay), []).append(parameter)
    # The first group's rate is the one that is reported.
    ordered = sorted(groups.items(), key=lambda group: group[0][0] != base_lr(cfg))
    return [
        {"params": parameters, "lr": lr, "weight_decay": decay}
        for (lr, decay), parameters in ordered
    ]


def _body_factors(cfg: CfgNode, model: nn.Module) -> dict[nn.Parameter, float]:
    """The learning rates of the body's parameters, relative to those of neck and heads."""
    factor, decay = cfg.SOLVER.BACKBONE_LR_FACTOR, cfg.SOLVER.LAYER_DECAY
    if factor == decay == 1:
        return {}
    backbone = model.get_submodule("backbone")
    assert isinstance(backbone, Backbone)
    layers = backbone.layers()
    return {
        parameter: factor * decay ** (len(layers) - number)
        for number, layer in enumerate(layers)
        for parameter in layer
    }


def _apex_fused_sgd(groups: list[dict], lr: float, momentum: float) -> torch.optim.Optimizer:
    if any(not parameter.is_cuda for group in groups for parameter in group["params"]):
        raise ConfigError("SOLVER.OPTIMIZER FusedSGD works on CUDA alone; use SGD")
    try:
        from apex.optimizers import FusedSGD

        return FusedSGD(groups, lr=lr, momentum=momentum)
    # Apex raises RuntimeError when it was installed without its CUDA extensions.
    except (ImportError, RuntimeError) as error:
        raise ConfigError(
            f"SOLVER.OPTIMIZER FusedSGD needs NVIDIA's apex built with its CUDA extensions "
            f"({error}): install it from https://github.com/NVIDIA/apex, or use SGD, which is "
            "fused as well. Never `pip install apex`: that package on PyPI is something else"
        ) from error
