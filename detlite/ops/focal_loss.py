"""The focal loss (Lin et al., Focal Loss for Dense Object Detection, 2017, equation 5)."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .checks import FLOATING, check, check_no_tangent, check_tensors, compute_dtype
from .dispatch import operator


def sigmoid_focal_loss(
    inputs: Tensor,
    targets: Tensor,
    alpha: float = 0.25,
    gamma: float = 2.0,
    reduction: str = "none",
) -> Tensor:
    """Compute the binary cross entropy, weighted down for well-classified examples.

    Only the arguments are kept for the gradient, which is computed from scratch.

    Args:
        inputs: logits of any shape and floating type.
        targets: from 0 to 1, in the shape of `inputs` and any type; they have no gradient.
        alpha: weight of target 1, from 0 to 1; target 0 has the rest. Negative for no weights.
        gamma: at least 0; 0 means plain cross entropy.
        reduction: "none", "mean" or "sum".

    Returns:
        The losses in the shape of `inputs`, or their mean or sum, as float32 (float64 for such
        `inputs`), because the sum over an image's anchors overflows half types.

    Raises:
        ValueError: the reduction is unknown.
        RuntimeError: another argument is invalid; the message names it.
    """
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"reduction must be 'none', 'mean' or 'sum', not {reduction!r}")
    check_no_tangent("sigmoid_focal_loss", inputs)
    loss = _forward(inputs, targets.to(inputs.dtype), alpha, gamma)
    if reduction == "none":
        return loss
    return loss.mean() if reduction == "mean" else loss.sum()


class _Terms(NamedTuple):
    """The terms of the loss and its derivatives, each of the shape of the logits."""

    target: Tensor  # in the type of computation
    p: Tensor  # the probability of target 1
    q: Tensor  # the probability of target 0
    cross_entropy: Tensor  # the loss without the focal weight
    weight: Tensor  # the focal weight, with alpha
    growth: Tensor  # the derivative by the logit of log(probability of the wrong target)


def _terms(logits: Tensor, targets: Tensor, alpha: float, gamma: float) -> _Terms:
    """Compute the terms in float32, or float64 for such logits."""
    dtype = compute_dtype(logits.dtype)
    logits, target = logits.to(dtype).contiguous(), targets.to(dtype).contiguous()
    p, q = logits.sigmoid(), (-logits).sigmoid()
    cross_entropy = logits.clamp(min=0) - logits * target + F.softplus(-logits.abs())
    miss = target * q + (1 - target) * p
    weight = miss**gamma
    if alpha >= 0:
        weight = (alpha * target + (1 - alpha) * (1 - target)) * weight
    growth = torch.where(miss > 0, (1 - 2 * target) * p * q / miss, 0)
    return _Terms(target, p, q, cross_entropy, weight, growth)


@operator("sigmoid_focal_loss_forward")
def _forward(inputs: Tensor, targets: Tensor, alpha: float, gamma: float) -> Tensor:
    _check("sigmoid_focal_loss_forward", inputs, targets, alpha, gamma)
    terms = _terms(inputs, targets, alpha, gamma)
    return terms.weight * terms.cross_entropy


@operator("sigmoid_focal_loss_backward")
def _backward(grad: Tensor, inputs: Tensor, targets: Tensor, alpha: float, gamma: float) -> Tensor:
    op = "sigmoid_focal_loss_backward"
    _check(op, inputs, targets, alpha, gamma)
    check_tensors(op, grad=(grad, inputs.shape, compute_dtype(inputs.dtype)))
    t = _terms(inputs, targets, alpha, gamma)
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


@torch.library.register_fake("detlite::sigmoid_focal_loss_forward")
def _(inputs: Tensor, targets: Tensor, alpha: float, gamma: float) -> Tensor:
    return inputs.new_empty(inputs.shape, dtype=compute_dtype(inputs.dtype))


@torch.library.register_fake("detlite::sigmoid_focal_loss_backward")
def _(grad: Tensor, inputs: Tensor, targets: Tensor, alpha: float, gamma: float) -> Tensor:
    return inputs.new_empty(inputs.shape)


def _setup_forward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    logits, targets, *ctx.settings = inputs
    ctx.save_for_backward(logits, targets)


def _differentiate_forward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return _backward(grad, *ctx.saved_tensors, *ctx.settings), None, None, None


def _setup_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    grad, logits, targets, *ctx.settings = inputs
    ctx.save_for_backward(grad, logits, targets)


def _differentiate_backward(ctx: Any, grad_grad: Tensor) -> tuple[Any, ...]:
    grad, logits, targets = ctx.saved_tensors
    grad_grad = grad_grad.to(grad.dtype)
    by_logits = grad_grad * grad * _curvature(logits, targets, *ctx.settings)
    by_grad = _backward(grad_grad, logits, targets, *ctx.settings)
    return by_grad, by_logits.to(logits.dtype), None, None, None


def _curvature(logits: Tensor, targets: Tensor, alpha: float, gamma: float) -> Tensor:
    """Return the second derivative of the loss by the logits."""
    t = _terms(logits, targets, alpha, gamma)
    return t.weight * (
        gamma * t.growth * ((gamma - 1) * t.growth + t.q - t.p) * t.cross_entropy
        + 2 * gamma * t.growth * ((1 - t.target) * t.p - t.target * t.q)
        + t.p * t.q
    )


torch.library.register_autograd(
    "detlite::sigmoid_focal_loss_forward", _differentiate_forward, setup_context=_setup_forward
)
torch.library.register_autograd(
    "detlite::sigmoid_focal_loss_backward", _differentiate_backward, setup_context=_setup_backward
)
