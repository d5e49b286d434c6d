"""The focal loss (Lin et al., Focal Loss for Dense Object Detection, 2017, equation 5)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_forward = torch.ops.detlite.sigmoid_focal_loss_forward
_backward = torch.ops.detlite.sigmoid_focal_loss_backward


def sigmoid_focal_loss(
    inputs: Tensor,
    targets: Tensor,
    alpha: float = 0.25,
    gamma: float = 2.0,
    reduction: str = "none",
) -> Tensor:
    """Binary cross entropy that counts the less the surer the prediction is of its target.

    Nothing but the arguments is kept for the gradient, which is computed anew.

    Args:
        inputs: logits of any shape and floating type.
        targets: of the shape of `inputs` and any type, from 0 to 1; they get no gradient.
        alpha: weight of target 1, from 0 to 1, target 0 having the rest; negative for no weights.
        gamma: zero or more; 0 is plain cross entropy.
        reduction: `"none"`, `"mean"` or `"sum"`.

    Returns:
        The losses, of the shape of `inputs`, or their mean or sum: float32, or float64 for such
        `inputs`, since the sum over an image's anchors overflows half types.

    Raises:
        ValueError: the reduction is unknown.
        RuntimeError: any other argument is refused by the kernel; the message names it.
    """
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"reduction must be 'none', 'mean' or 'sum', not {reduction!r}")
    loss = _forward(inputs, targets.to(inputs.dtype), alpha, gamma)
    if reduction == "none":
        return loss
    return loss.mean() if reduction == "mean" else loss.sum()


@torch.library.register_fake("detlite::sigmoid_focal_loss_forward")
def _(inputs: Tensor, targets: Tensor, alpha: float, gamma: float) -> Tensor:
    return inputs.new_empty(inputs.shape, dtype=_wide(inputs.dtype))


@torch.library.register_fake("detlite::sigmoid_focal_loss_backward")
def _(grad: Tensor, inputs: Tensor, targets: Tensor, alpha: float, gamma: float) -> Tensor:
    return inputs.new_empty(inputs.shape)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


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
    wide = grad_grad.to(grad.dtype)
    curved = wide * grad * _curvature(logits, targets, *ctx.settings)
    by_grad = _backward(wide, logits, targets, *ctx.settings)
    return by_grad, curved.to(logits.dtype), None, None, None


def _curvature(logits: Tensor, targets: Tensor, alpha: float, gamma: float) -> Tensor:
    """The loss's second derivative by the logits, in the terms of csrc/focal_loss.h."""
    wide = _wide(logits.dtype)
    logits, targets = logits.to(wide), targets.to(wide)
    p, q = logits.sigmoid(), (-logits).sigmoid()
    miss = targets * q + (1 - targets) * p
    cross_entropy = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    growth = torch.where(miss > 0, (1 - 2 * targets) * p * q / miss, 0)
    weight = miss**gamma
    if alpha >= 0:
        weight = weight * (alpha * targets + (1 - alpha) * (1 - targets))
    return weight * (
        gamma * growth * ((gamma - 1) * growth + q - p) * cross_entropy
        + 2 * gamma * growth * ((1 - targets) * p - targets * q)
        + p * q
    )


torch.library.register_autograd(
    "detlite::sigmoid_focal_loss_forward", _differentiate_forward, setup_context=_setup_forward
)
torch.library.register_autograd(
    "detlite::sigmoid_focal_loss_backward", _differentiate_backward, setup_context=_setup_backward
)
