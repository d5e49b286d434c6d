"""A simulated device without kernels, like torch's MPS or XPU, that computes on the CPU.

Tensors of the device "other" hold one of the CPU. As on MPS there is no float64, and an operation
on tensors of two devices is an error. Operators of detlite go where torch's dispatcher sends those
of a new backend (PrivateUse1). Once imported, torch's engine takes "other" for the accelerator of
this process.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
DEVICE = torch.device("privateuseone", 0)
NAME = "other"
# Operators that accept indices or a source on the CPU.
_ACROSS = {aten.copy_, aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}


class _Module(backend_registration._DummyBackendModule):
    """torch.other."""

    def __init__(self) -> None:
        self.generator = torch.zeros(16, dtype=torch.uint8)

    def get_rng_state(self, _device: Any = None) -> Tensor:
        return self.generator

    def set_rng_state(self, state: Tensor, _device: Any = None) -> None:
        self.generator = state

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
if not torch.cuda.is_available():  # a torch with CUDA asks for its streams even so
    torch._C._ensureCUDADeviceGuardSet()
_autocast = torch.library.Library("_", "IMPL")
_autocast.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")


class _Other(Tensor):
    """A tensor of the device."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> _Other:
        if inner.dtype == torch.float64:
            raise TypeError("the device has no float64")
        made = Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(),
            dtype=inner.dtype, device=DEVICE,
        )  # fmt: skip
        made.inner = inner
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"other({self.inner})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.inner.__reduce_ex__(protocol)  # as checkpoints are read, on the CPU

    def tolist(self) -> Any:
        return self.inner.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        return self.inner.numpy(force=force)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class OtherDevice(TorchDispatchMode):
    """Makes the device available."""

    def __init__(self) -> None:
        super().__init__()
        self.called: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "detlite":
            self.called.add(str(func))
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    leaves = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    own = [x for x in leaves if isinstance(x, _Other)]
    if func.namespace == "detlite" and own:
        keys = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)
        with OtherDevice():  # torch leaves a mode out while that handles a call
            return func.redispatch(keys, *args, **kwargs)
    there = bool(own)
    if kwargs.get("device") is not None:
        there = torch.device(kwargs["device"]).type == NAME
        kwargs = {**kwargs, "device": torch.device("cpu")} if there else kwargs
    elif own and func.overloadpacket not in _ACROSS:
        foreign = [x for x in leaves if not isinstance(x, _Other) and x.dim()]
        assert not foreign, f"{func}: tensors of two devices"
    args, kwargs = pytree.tree_map_only(_Other, lambda x: x.inner, (list(args), kwargs))
    result = func(*args, **kwargs)
    if func is aten._local_scalar_dense.default or not func._schema.returns:
        return result
    written = [
        value for value, spec in zip(leaves, func._schema.arguments, strict=False)
        if spec.alias_info is not None and spec.alias_info.is_write
    ]  # fmt: skip
    if func._schema.name.endswith("_") and written:
        return written[0]
    return pytree.tree_map_only(Tensor, _Other, result) if there else result
