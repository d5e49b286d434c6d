"""The focal loss in plain torch, in the terms of csrc/focal_loss.h."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .checks import check, check_floating, check_same_device, check_shape, wide


class _Terms(NamedTuple):
    """Each of the shape of the logits. p and q are the probabilities of targets 1 and 0, miss that
    of the wrong one."""

    target: Tensor
    p: Tensor
    q: Tensor
    cross_entropy: Tensor
    miss: Tensor
    weight: Tensor


def _terms(logits: Tensor, targets: Tensor, alpha: float, gamma: float) -> _Terms:
    dtype = wide(logits.dtype)
    logits, target = logits.to(dtype).contiguous(), targets.to(dtype).contiguous()
    p, q = logits.sigmoid(), (-logits).sigmoid()
    cross_entropy = logits.clamp(min=0) - logits * target + F.softplus(-logits.abs())
    miss = target * q + (1 - target) * p
    weight = miss**gamma
    if alpha >= 0:
        weight = (alpha * target + (1 - alpha) * (1 - target)) * weight
    return _Terms(target, p, q, cross_entropy, miss, weight)


def sigmoid_focal_loss_forward(
    inputs: Tensor, targets: Tensor, alpha: float, gamma: float
) -> Tensor:
    """The kernel `sigmoid_focal_loss_forward`."""
    _check("sigmoid_focal_loss_forward", inputs, targets, alpha, gamma)
    terms = _terms(inputs, targets, alpha, gamma)
    return terms.weight * terms.cross_entropy


def sigmoid_focal_loss_backward(
    grad: Tensor, inputs: Tensor, targets: Tensor, alpha: float, gamma: float
) -> Tensor:
    """The kernel `sigmoid_focal_loss_backward`."""
    op = "sigmoid_focal_loss_backward"
    _check(op, inputs, targets, alpha, gamma)
    check(
        grad.dtype == wide(inputs.dtype),
        f"{op}: grad must be {wide(inputs.dtype)} for {inputs.dtype} inputs, got {grad.dtype}",
    )
    check_shape(op, "grad", grad, list(inputs.shape))
    check_same_device(op, inputs, grad=grad)
    target, p, q, cross_entropy, miss, weight = _terms(inputs, targets, alpha, gamma)
    growth = torch.where(miss > 0, (1 - 2 * target) * p * q / miss, 0)
    slope = weight * (gamma * growth * cross_entropy + (1 - target) * p - target * q)
    return (grad.contiguous() * slope).to(inputs.dtype)


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
