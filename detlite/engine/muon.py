"""Muon (https://kellerjordan.github.io/posts/muon): momentum whose updates are orthogonalized."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

# Coefficients a, b and c of the quintic Newton-Schulz iteration, by its author.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
# Layers that compute the outputs of a model, or the offsets of a deformable convolution.
_PREDICTORS = (
    "cls_score", "bbox_pred", "cls_logits", "mask_fcn_logits", "kps_score_lowres", "offset",
)  # fmt: skip


class Muon(torch.optim.AdamW):
    """Muon for the parameter groups with `muon` True, and AdamW for the others.

    A convolution kernel [D, C, ...] counts as the matrix [D, C ...]. The update of a matrix [N, M]
    has a root mean square of 0.2, similar to AdamW, so both share the learning rate and the weight
    decay (https://arxiv.org/abs/2502.16982). The result equals torch.optim.Muon with
    `adjust_lr_fn="match_rms_adamw"`, up to rounding: the iteration is in float32 instead of
    bfloat16, and on the small Gram matrix, which is faster for wide matrices.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have gradients; `closure` may compute these first."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        groups = self.param_groups
        for group in groups:
            if group["muon"]:
                self._step_matrices(group)
        try:
            self.param_groups = [group for group in groups if not group["muon"]]
            super().step()
        finally:
            self.param_groups = groups
        return loss

    def _step_matrices(self, group: dict[str, Any]) -> None:
        lr, momentum = group["lr"], group["betas"][0]
        for weight in group["params"]:
            if (gradient := weight.grad) is None:
                continue
            state = self.state[weight]
            if not state:
                # AdamW reads the number of steps of every state that it loads.
                state["step"] = torch.zeros(())
                state["momentum_buffer"] = torch.zeros_like(gradient)
            average = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
            update = gradient.lerp(average, momentum).flatten(1)  # Nesterov's momentum
            scale = 0.2 * math.sqrt(max(update.shape))
            weight.mul_(1 - lr * group["weight_decay"])
            weight.add_(orthogonalize(update).view(weight.shape), alpha=-lr * scale)


def orthogonalize(matrix: Tensor) -> Tensor:
    """Return [N, M] with the singular vectors of a matrix [N, M] and singular values near 1.

    Singular values of at least about a hundredth of the matrix's norm become 0.7 to 1.2. Each
    iteration multiplies X by a polynomial of the Gram matrix A = X X^T, a + b A + c A A. These
    polynomials commute, so the small matrices are multiplied first, and X only at the end.
    """
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonalize(matrix.T).T.contiguous()
    matrix = matrix / matrix.norm().clamp(min=1e-7)
    gram = matrix @ matrix.T
    product = factor = _polynomial(gram)
    for _ in range(_ITERATIONS - 1):
        gram = factor @ gram @ factor
        factor = _polynomial(gram)
        product = factor @ product
    return product @ matrix


def _polynomial(gram: Tensor) -> Tensor:
    a, b, c = _COEFFICIENTS
    result = torch.addmm(gram, gram, gram, beta=b, alpha=c)
    result.diagonal().add_(a)
    return result


def hidden_matrices(model: nn.Module) -> set[Tensor]:
    """Return the weights that Muon updates: weights of hidden linear layers and convolutions.

    AdamW updates the first convolution, the predictors (recognized by the names in `_PREDICTORS`)
    and grouped convolutions, which are many small matrices.
    """
    first, matrices = None, set()
    for path, module in model.named_modules():
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
            first = first or module
            if module is first or module.groups > 1:
                continue
        elif not isinstance(module, nn.Linear):
            continue
        if path.rpartition(".")[2] not in _PREDICTORS:
            matrices.add(module.weight)
    return matrices
