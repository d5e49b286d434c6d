"""The focal loss in plain PyTorch, with the terms of csrc/common/focal_loss.h."""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .checks import check, check_floating, check_same_device, check_shape, wide


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


def sigmoid_focal_loss_forward(
    inputs: Tensor, targets: Tensor, alpha: float, gamma: float
) -> Tensor:
    """Implement `sigmoid_focal_loss_forward`."""
    _check("sigmoid_focal_loss_forward", inputs, targets, alpha, gamma)
    terms = focal_loss_terms(inputs, targets, alpha, gamma)
    return terms.weight * terms.cross_entropy


def sigmoid_focal_loss_backward(
    grad: Tensor, inputs: Tensor, targets: Tensor, alpha: float, gamma: float
) -> Tensor:
    """Implement `sigmoid_focal_loss_backward`."""
    op = "sigmoid_focal_loss_backward"
    _check(op, inputs, targets, alpha, gamma)
    check(
        grad.dtype == wide(inputs.dtype),
        f"{op}: grad must be {wide(inputs.dtype)} for {inputs.dtype} inputs, got {grad.dtype}",
    )
    check_shape(op, "grad", grad, list(inputs.shape))
    check_same_device(op, inputs, grad=grad)
    t = focal_loss_terms(inputs, targets, alpha, gamma)
    slope = gamma * t.growth * t.cross_entropy + (1 - t.target) * t.p - t.target * t.q
    return (grad.contiguous() * t.weight * slope).to(inputs.dtype)


def _check(op: str, inputs: Tensor, targets: Tensor, alpha: float, gamma: float) -> None:
    check_floating(op, "inputs", inputs)
    check(
        targets.dtype == inputs.dtype,
        f"{op}: targets must have the type of inputs, {inputs.dtype}, got {targets.dtype}",
    )
    check_shape(op, "targets", targets, list(inputs.shape))
    check_same_device(op, inputs, targets=targets)
    check(
        math.isfinite(alpha) and alpha <= 1,
        f"{op}: alpha must be from 0 to 1, or negative for no weights, got {alpha}",
    )
    check(math.isfinite(gamma) and gamma >= 0, f"{op}: gamma must be zero or more, got {gamma}")
