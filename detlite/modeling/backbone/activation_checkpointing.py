"""Activation checkpointing: less training memory at the cost of a second forward pass.

Chen et al., Training Deep Nets with Sublinear Memory Cost, https://arxiv.org/abs/1604.06174.
"""

from collections.abc import Callable

from torch import Tensor, is_grad_enabled, nn
from torch.utils.checkpoint import checkpoint

from detlite.modeling.layers.norm import uses_batch_statistics


def checkpoint_activations(
    module: nn.Module,
    x: Tensor,
    call: Callable[[Tensor], Tensor] | None = None,
    random: bool = False,
) -> Tensor:
    """Compute `module(x)`; save only `x`, and recompute the rest in backward.

    Losses and gradients do not change. Modules without trainable parameters are called as usual.

    Args:
        module: a ResNet stage or transformer block. Stages need less memory than blocks: memory is
            highest while the heads' maps exist, and those are freed before a stage is recomputed.
        call: function to call instead of `module`; it uses the parameters of `module`.
        random: repeat random numbers in the recomputation, for modules that draw some.
    """
    call = call or module
    if not is_grad_enabled() or not any(p.requires_grad for p in module.parameters()):
        return call(x)
    return checkpoint(call, x, use_reentrant=False, preserve_rng_state=random)


def check_no_batch_statistics(network: nn.Module, name: str) -> None:
    """Raise a ValueError if a norm of a checkpointed network would count every batch twice."""
    if uses_batch_statistics(network):
        raise ValueError(
            f"MODEL.BACKBONE.CHECKPOINT_ACTIVATIONS: {name} has batch norm, which would count "
            "every batch twice: set MODEL.RESNETS.NORM to FrozenBN, or this key to False"
        )
