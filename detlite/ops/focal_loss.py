"""The focal loss (Lin et al., Focal Loss for Dense Object Detection, 2017, equation 5)."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .dispatch import check_no_tangent, compute_dtype, declare


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


# ---- Declaration of the operators


def _loss_shape(inputs: Tensor, targets: Tensor, alpha: float, gamma: float) -> Tensor:
    return inputs.new_empty(inputs.shape, dtype=compute_dtype(inputs.dtype))


def _save_forward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    logits, targets, *ctx.settings = inputs
    ctx.save_for_backward(logits, targets)


def _differentiate_forward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    backward = torch.ops.detlite.sigmoid_focal_loss_backward
    return backward(grad, *ctx.saved_tensors, *ctx.settings), None, None, None


def _gradient_shape(grad: Tensor, inputs: Tensor, *_: Any) -> Tensor:
    return inputs.new_empty(inputs.shape)


def _save_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    grad, logits, targets, *ctx.settings = inputs
    ctx.save_for_backward(grad, logits, targets)


def _differentiate_backward(ctx: Any, grad_grad: Tensor) -> tuple[Any, ...]:
    grad, logits, targets = ctx.saved_tensors
    grad_grad = grad_grad.to(grad.dtype)
    by_logits = grad_grad * grad * _curvature(logits, targets, *ctx.settings)
    backward = torch.ops.detlite.sigmoid_focal_loss_backward
    by_grad = backward(grad_grad, logits, targets, *ctx.settings)
    return by_grad, by_logits.to(logits.dtype), None, None, None


class FocalTerms(NamedTuple):
    """The terms of the loss and its derivatives, each of the shape of the logits."""

    target: Tensor  # in the type of computation
    p: Tensor  # the probability of target 1
    q: Tensor  # the probability of target 0
    cross_entropy: Tensor  # the loss without the focal weight
    weight: Tensor  # the focal weight, with alpha
    growth: Tensor  # the derivative by the logit of log(probability of the wrong target)


def focal_terms(logits: Tensor, targets: Tensor, alpha: float, gamma: float) -> FocalTerms:
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
    return FocalTerms(target, p, q, cross_entropy, weight, growth)


def _curvature(logits: Tensor, targets: Tensor, alpha: float, gamma: float) -> Tensor:
    """Return the second derivative of the loss by the logits."""
    t = focal_terms(logits, targets, alpha, gamma)
    return t.weight * (
        gamma * t.growth * ((gamma - 1) * t.growth + t.q - t.p) * t.cross_entropy
        + 2 * gamma * t.growth * ((1 - t.target) * t.p - t.target * t.q)
        + t.p * t.q
    )


declare(
    "sigmoid_focal_loss_forward",
    fallback="focal_loss.forward",
    runs_on="any",
    shapes=_loss_shape,
    gradient=(_save_forward, _differentiate_forward),
)
declare(
    "sigmoid_focal_loss_backward",
    fallback="focal_loss.backward",
    runs_on="any",
    shapes=_gradient_shape,
    gradient=(_save_backward, _differentiate_backward),
)
