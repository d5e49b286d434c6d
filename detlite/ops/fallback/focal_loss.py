"""The focal loss in plain PyTorch, with the terms of csrc/common/focal_loss.h."""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .checks import FLOATING, check, check_tensors, wide
from .dispatch import fallback


class FocalLossTerms(NamedTuple):
    """The terms of the loss and its derivatives, each of the shape of the logits."""

    target: Tensor  # in the type of computation
    p: Tensor  # the probability of target 1
    q: Tensor  # the probability of target 0
    cross_entropy: Tensor  # the loss without the focal weight
    weight: Tensor  # the focal weight, with alpha
    growth: Tensor  # the derivative by the logit of log(probability of the wrong target)


def focal_loss_terms(logits: Tensor, targets: Tensor, alpha: float, gamma: float) -> FocalLossTerms:
    """Compute the terms in float32, or float64 for such logits."""
    dtype = wide(logits.dtype)
    logits, target = logits.to(dtype).contiguous(), targets.to(dtype).contiguous()
    p, q = logits.sigmoid(), (-logits).sigmoid()
    cross_entropy = logits.clamp(min=0) - logits * target + F.softplus(-logits.abs())
    miss = target * q + (1 - target) * p
    weight = miss**gamma
    if alpha >= 0:
        weight = (alpha * target + (1 - alpha) * (1 - target)) * weight
    growth = torch.where(miss > 0, (1 - 2 * target) * p * q / miss, 0)
    return FocalLossTerms(target, p, q, cross_entropy, weight, growth)


@fallback("sigmoid_focal_loss_forward")
def sigmoid_focal_loss_forward(
    inputs: Tensor, targets: Tensor, alpha: float, gamma: float
) -> Tensor:
    _check("sigmoid_focal_loss_forward", inputs, targets, alpha, gamma)
    terms = focal_loss_terms(inputs, targets, alpha, gamma)
    return terms.weight * terms.cross_entropy


@fallback("sigmoid_focal_loss_backward")
def sigmoid_focal_loss_backward(
    grad: Tensor, inputs: Tensor, targets: Tensor, alpha: float, gamma: float
) -> Tensor:
    op = "sigmoid_focal_loss_backward"
    _check(op, inputs, targets, alpha, gamma)
    check_tensors(op, grad=(grad, inputs.shape, wide(inputs.dtype)))
    t = focal_loss_terms(inputs, targets, alpha, gamma)
    slope = gamma * t.growth * t.cross_entropy + (1 - t.target) * t.p - t.target * t.q
    return (grad.contiguous() * t.weight * slope).to(inputs.dtype)


def _check(op: str, inputs: Tensor, targets: Tensor, alpha: float, gamma: float) -> None:
    shape = inputs.shape
    check_tensors(op, inputs=(inputs, shape, FLOATING), targets=(targets, shape, inputs.dtype))
    check(
        math.isfinite(alpha) and alpha <= 1,
        f"{op}: alpha must be from 0 to 1, or negative for no weights, got {alpha}",
    )
    check(math.isfinite(gamma) and gamma >= 0, f"{op}: gamma must be zero or more, got {gamma}")
