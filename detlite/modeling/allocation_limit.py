"""Limit the memory of a model while it is built."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from detlite.errors import ConfigError

_SLACK = 1 << 26  # bytes
_FACTOR = 4  # the file may have weights of half the precision, and initialization needs memory
_PER_TENSOR = 1 << 14  # bytes, of Python's objects around it
_NEW = {
    torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.arange,
    torch.linspace, torch.eye,
}  # fmt: skip


class AllocationLimit(TorchFunctionMode):
    """Raise a ConfigError before new tensors need much more memory than a file of weights has.

    A stored config of some hundred bytes can describe a model of any size.

    Args:
        file_bytes: size of the file with the weights of the model.
    """

    def __init__(self, file_bytes: int) -> None:
        super().__init__()
        self._file_bytes = file_bytes
        self._left: float = _SLACK + _FACTOR * file_bytes

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _NEW:
            try:  # a tensor on "meta" has only a size
                size = func(*args, **{**kwargs, "device": "meta"}).nbytes
            except RuntimeError:  # more bytes than numbers of 64 bits
                size = math.inf
            self._left -= size + _PER_TENSOR
            if self._left < 0:
                raise ConfigError(
                    "the config describes a model that is much larger than its weights, whose file "
                    f"has {self._file_bytes} bytes"
                )
        return func(*args, **kwargs)
