"""Frozen batch norm as a part of the convolution before it, in training as well.

scale * conv(x) + shift is a convolution with the weights scale * w. To multiply weights costs
nothing beside a pass over a map, forward and backward; their gradient goes through the product.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .asymmetric_padding import PaddedConv2d
from .conv import QuickConv2d
from .norm import FrozenBatchNorm2d

logger = logging.getLogger(__name__)


class NormedConv2d(QuickConv2d):
    """A convolution and the frozen norm behind it.

    On channels-last maps, in training or where gradients are wanted, they are one convolution; else
    one after the other, as they were recorded.

    Args:
        conv: whose parameters it shares.
        norm: stays where it is in the model, so that no entry of a checkpoint changes its name, and
            from now on gives what it is given.
    """

    def __init__(self, conv: nn.Conv2d, norm: FrozenBatchNorm2d) -> None:
        super().__init__(conv)
        self.margins = conv.margins if isinstance(conv, PaddedConv2d) else None
        self._norm = (norm,)  # in a tuple it is no child, with entries of its own
        norm.applied = True

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, D, H', W']."""
        norm = self._norm[0]
        x = x if self.margins is None else F.pad(x, self.margins)
        one = self.training or torch.is_grad_enabled()
        if not one or not x.is_contiguous(memory_format=torch.channels_last):
            return norm.affine(super().forward(x))
        scale, shift = norm.scale_and_shift()
        bias = shift if self.bias is None else torch.addcmul(shift, self.bias, scale)
        return self._conv_forward(x, self.weight * scale[:, None, None, None], bias)

    def plain(self) -> nn.Conv2d:
        """The convolution alone, with the same parameters; its norm is one again."""
        self._norm[0].applied = False
        conv = super().plain()
        return conv if self.margins is None else PaddedConv2d(conv, self.margins)


def fold_frozen_norms(body: nn.Module) -> None:
    """Makes one layer of each convolution and the frozen norm that alone reads what it gives.

    `body` takes images [B, 3, H, W]. One that cannot be called without values stays as it is.
    """
    if not any(isinstance(module, FrozenBatchNorm2d) for module in body.modules()):
        return
    try:
        pairs = list(_pairs(body))
    except Exception as error:  # of others' code: some takes images of one size, some reads values
        logger.info("frozen norms stay layers of their own: %s", str(error).partition("\n")[0])
        return
    for path, norm in pairs:
        conv = body.get_submodule(path)
        assert isinstance(conv, nn.Conv2d)
        body.set_submodule(path, NormedConv2d(conv, norm))


def unfold_norms(module: nn.Module) -> None:
    """Undoes `fold_frozen_norms`."""
    for path, child in list(module.named_modules()):
        if isinstance(child, NormedConv2d):
            module.set_submodule(path, child.plain())


def _pairs(body: nn.Module) -> Iterator[tuple[str, FrozenBatchNorm2d]]:
    """Found by calling `body` with tensors that have shapes alone."""
    calls: Counter[nn.Module] = Counter()
    made_by: dict[int, str] = {}  # the result of a convolution, by its identity
    read_by: dict[FrozenBatchNorm2d, Tensor] = {}

    def made(path: str, module: nn.Module, result: Tensor) -> None:
        calls[module] += 1
        made_by[id(result)] = path

    def read(module: FrozenBatchNorm2d, arguments: tuple[Tensor, ...]) -> None:
        calls[module] += 1
        read_by[module] = arguments[0]

    hooks: list[Any] = []
    for path, module in body.named_modules():
        if (
            type(module) in (nn.Conv2d, QuickConv2d, PaddedConv2d)
            and module.padding_mode == "zeros"
        ):
            hooks.append(
                module.register_forward_hook(lambda m, _, out, path=path: made(path, m, out))
            )
        elif isinstance(module, FrozenBatchNorm2d):
            hooks.append(module.register_forward_pre_hook(read))
    own = [*body.named_parameters(), *body.named_buffers()]
    uses = _Uses()
    dtype = next(body.parameters()).dtype
    try:
        with torch.no_grad(), FakeTensorMode(), torch.device("cpu"), uses:
            state = {name: torch.empty(x.shape, dtype=x.dtype) for name, x in own}
            maps = functional_call(body, state, torch.empty(2, 3, 256, 256, dtype=dtype))
    finally:
        for hook in hooks:
            hook.remove()
    uses.count(maps)  # what the body gives is read by others
    for norm, x in read_by.items():
        path = made_by.get(id(x), "")
        once = path and calls[norm] == calls[body.get_submodule(path)] == uses.counts[id(x)] == 1
        if once:
            yield path, norm


class _Uses(TorchDispatchMode):
    """Counts how many operations read each tensor, and keeps them all, so that none has the
    identity of another."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[int] = Counter()
        self._kept: list[Tensor] = []

    def count(self, arguments: Any) -> None:
        """One more reader of the tensors among `arguments`."""
        tensors = [x for x in pytree.tree_leaves(arguments) if isinstance(x, Tensor)]
        self._kept += tensors
        self.counts.update({id(x) for x in tensors})

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count((args, kwargs))
        result = func(*args, **(kwargs or {}))
        self._kept += [x for x in pytree.tree_leaves(result) if isinstance(x, Tensor)]
        return result
