"""The focal loss and its gradient in plain torch."""

import math

from torch import Tensor

from detlite.ops.dispatch import compute_dtype
from detlite.ops.focal_loss import focal_terms

from .checks import FLOATING, check, check_tensors


def forward(inputs: Tensor, targets: Tensor, alpha: float, gamma: float) -> Tensor:
    _check("sigmoid_focal_loss_forward", inputs, targets, alpha, gamma)
    terms = focal_terms(inputs, targets, alpha, gamma)
    return terms.weight * terms.cross_entropy


def backward(grad: Tensor, inputs: Tensor, targets: Tensor, alpha: float, gamma: float) -> Tensor:
    op = "sigmoid_focal_loss_backward"
    _check(op, inputs, targets, alpha, gamma)
    check_tensors(op, grad=(grad, inputs.shape, compute_dtype(inputs.dtype)))
    t = focal_terms(inputs, targets, alpha, gamma)
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
