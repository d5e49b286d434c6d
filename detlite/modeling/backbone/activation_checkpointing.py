"""Activation checkpointing: less memory in training, for one more forward pass of the body.

Chen et al., Training Deep Nets with Sublinear Memory Cost, https://arxiv.org/abs/1604.06174.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from detlite.modeling.layers.norm import takes_batch_statistics


def checkpointed(
    part: nn.Module, x: Tensor, call: Callable[[Tensor], Tensor] | None = None, random: bool = False
) -> Tensor:
    """`part(x)`, of which backward keeps `x` alone and computes the rest again.

    Losses, gradients and batch statistics are those of `part(x)`. A part that has nothing to train
    keeps nothing and is simply called.

    Args:
        part, x: a part of a model, and its input.
        call: what is done instead of `part(x)`, with the parameters of `part`.
        random: whether it draws random numbers, which are then drawn again.
    """
    call = call or part
    # Of a ResNet a whole stage, not each of its blocks: most memory is taken when the heads' maps
    # are there as well, and those are gone when a stage is computed again.
    if not torch.is_grad_enabled() or not any(p.requires_grad for p in part.parameters()):
        return call(x)
    if not takes_batch_statistics(part):
        return checkpoint(call, x, use_reentrant=False, preserve_rng_state=random)

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _statistics_kept(part)

    return checkpoint(call, x, use_reentrant=False, preserve_rng_state=random, context_fn=contexts)


@contextmanager
def _statistics_kept(part: nn.Module) -> Iterator[None]:
    """Batch norm normalises by its batch, but does not count it a second time."""
    norms = [m for m in part.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
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
