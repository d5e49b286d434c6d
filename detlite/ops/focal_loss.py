"""The focal loss (Lin et al., Focal Loss for Dense Object Detection, 2017, equation 5)."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .checks import FLOATING, check, check_tensors
from .dispatch import check_no_tangent, compute_dtype, operator, refuse_second_derivative


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
    targets = targets.to(inputs.dtype)
    loss = torch.ops.detlite.sigmoid_focal_loss_forward(inputs, targets, alpha, gamma)
    if reduction == "none":
        return loss
    return loss.mean() if reduction == "mean" else loss.sum()


# ---- The operators, and their fallbacks in plain torch


def _loss_shape(inputs: Tensor, targets: Tensor, alpha: float, gamma: float) -> Tensor:
    return inputs.new_empty(inputs.shape, dtype=compute_dtype(inputs.dtype))


def _gradient_shape(grad: Tensor, inputs: Tensor, *_: Any) -> Tensor:
    return inputs.new_empty(inputs.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    logits, targets, *ctx.settings = inputs
    ctx.save_for_backward(logits, targets)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    backward = torch.ops.detlite.sigmoid_focal_loss_backward
    return backward(grad, *ctx.saved_tensors, *ctx.settings), None, None, None


@operator("sigmoid_focal_loss_forward", "any", _loss_shape, _differentiate, _save)
def _forward(inputs: Tensor, targets: Tensor, alpha: float, gamma: float) -> Tensor:
    _check("sigmoid_focal_loss_forward", inputs, targets, alpha, gamma)
    *_, weight, cross_entropy = _terms(inputs, targets, alpha, gamma)
    return weight * cross_entropy


@operator("sigmoid_focal_loss_backward", "any", _gradient_shape, refuse_second_derivative)
def _backward(grad: Tensor, inputs: Tensor, targets: Tensor, alpha: float, gamma: float) -> Tensor:
    op = "sigmoid_focal_loss_backward"
    _check(op, inputs, targets, alpha, gamma)
    check_tensors(op, grad=(grad, inputs.shape, compute_dtype(inputs.dtype)))
    target, p, q, miss, weight, cross_entropy = _terms(inputs, targets, alpha, gamma)
    # The derivative by the logit of log(probability of the wrong target).
    growth = torch.where(miss > 0, (1 - 2 * target) * p * q / miss, 0)
    slope = gamma * growth * cross_entropy + (1 - target) * p - target * q
    return (grad.contiguous() * weight * slope).to(inputs.dtype)


def _terms(logits: Tensor, targets: Tensor, alpha: float, gamma: float) -> tuple[Tensor, ...]:
    """Return terms of the loss in float32, or float64 for such logits, in the logits' shape.

    These are the target, the probabilities of target 1, of target 0 and of the wrong target, the
    focal weight with alpha, and the cross entropy, which is the loss without the weight.
    """
    dtype = compute_dtype(logits.dtype)
    logits, target = logits.to(dtype).contiguous(), targets.to(dtype).contiguous()
    p, q = logits.sigmoid(), (-logits).sigmoid()
    cross_entropy = logits.clamp(min=0) - logits * target + F.softplus(-logits.abs())
    miss = target * q + (1 - target) * p
    weight = miss**gamma
    if alpha >= 0:
        weight = (alpha * target + (1 - alpha) * (1 - target)) * weight
    return target, p, q, miss, weight, cross_entropy


def _check(op: str, inputs: Tensor, targets: Tensor, alpha: float, gamma: float) -> None:
    shape = inputs.shape
    check_tensors(op, inputs=(inputs, shape, FLOATING), targets=(targets, shape, inputs.dtype))
    check(
        math.isfinite(alpha) and alpha <= 1,
        f"{op}: alpha must be from 0 to 1, or negative for no weights, got {alpha}",
    )
    check(math.isfinite(gamma) and gamma >= 0, f"{op}: gamma must be zero or more, got {gamma}")
