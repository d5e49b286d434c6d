"""Activation checkpointing: less training memory at the cost of a second forward pass.

Chen et al., Training Deep Nets with Sublinear Memory Cost, https://arxiv.org/abs/1604.06174.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from torch import Tensor, is_grad_enabled, nn
from torch.utils.checkpoint import checkpoint, noop_context_fn

from detlite.modeling.layers.norm import uses_batch_statistics


def checkpoint_activations(
    module: nn.Module,
    x: Tensor,
    call: Callable[[Tensor], Tensor] | None = None,
    random: bool = False,
) -> Tensor:
    """Compute `module(x)`; save only `x`, and recompute the rest in backward.

    Losses, gradients and batch statistics do not change. Modules without trainable parameters are
    called as usual.

    Args:
        module: a ResNet stage or transformer block. Stages need less memory than blocks: memory is
            highest while the heads' maps exist, and those are freed before a stage is recomputed.
        call: function to call instead of `module`; it uses the parameters of `module`.
        random: repeat random numbers in the recomputation, for modules that draw some.
    """
    call = call or module
    if not is_grad_enabled() or not any(p.requires_grad for p in module.parameters()):
        return call(x)
    contexts = noop_context_fn
    if uses_batch_statistics(module):
        contexts = lambda: (nullcontext(), _keep_running_statistics(module))  # noqa: E731
    return checkpoint(call, x, use_reentrant=False, preserve_rng_state=random, context_fn=contexts)


@contextmanager
def _keep_running_statistics(module: nn.Module) -> Iterator[None]:
    """Let batch norm normalize by its batch without counting the batch a second time."""
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
            if norm.training and norm.num_batches_tracked is not None:
                norm.num_batches_tracked.sub_(1)
