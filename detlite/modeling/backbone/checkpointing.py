"""Activation checkpointing: less memory in training, for one more forward pass of the body.

Chen et al., Training Deep Nets with Sublinear Memory Cost, https://arxiv.org/abs/1604.06174.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..norm import takes_batch_statistics


def checkpointed(block: nn.Module, x: Tensor) -> Tensor:
    """`block(x)`, of which backward keeps `x` alone and computes the rest again.

    Losses, gradients and batch statistics are those of `block(x)`. Nothing in the block may draw
    random numbers. One that has nothing to train keeps nothing and is simply called.
    """
    if not torch.is_grad_enabled() or not any(p.requires_grad for p in block.parameters()):
        return block(x)
    if not takes_batch_statistics(block):
        return checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _statistics_kept(block)

    return checkpoint(block, x, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)


@contextmanager
def _statistics_kept(block: nn.Module) -> Iterator[None]:
    """Batch norm normalises by its batch, but does not count it a second time."""
    norms = [m for m in block.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
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
