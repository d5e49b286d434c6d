"""Define the operators: each calls a compiled kernel, or its fallback on a device without one.

A fallback is a Python function. Its signature is the schema of the operator. The dispatcher calls
it on devices without a compiled kernel (MPS, XPU, CUDA in a build for the CPU), and everywhere if
the kernels are not built. RoIAlign, RoIPool and NMS use torchvision's operators; a device that has
none runs them on the CPU. Shapes, gradients and checks of arguments are the same as for the
kernels, except that the contents of integer tensors are not checked.

The memory of fallbacks is bounded, but the host waits for the device a few times in each call.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, wraps
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from . import kernels

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

FALLBACKS: dict[str, Callable[..., Any]] = {}  # by the name of the operator


def has_kernels(device: torch.device | str) -> bool:
    """Return True if the operators have compiled kernels for a device."""
    return _has_kernel("detlite::nms", torch.device(device).type)


def _has_kernel(operator: str, device_type: str) -> bool:
    key = torch._C._dispatch_key_for_device(device_type)
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator, key)


def operator(name: str, runs_on: Literal["any", "torchvision", "cpu"] = "any") -> Callable[[F], F]:
    """Return a decorator that makes a function call `torch.ops.detlite.<name>`.

    The function is the fallback of the operator. `runs_on` selects the devices that it runs on:
    any device, devices with kernels of torchvision, or only the CPU. Arguments on another device
    are computed on the CPU.
    """
    packet, _, overload = name.partition(".")

    def register(function: F) -> F:
        @wraps(function)
        def fallback(*arguments: Any) -> Any:
            # Registers torch.ops.torchvision. Importing it takes longer than importing detlite.
            import torchvision  # noqa: F401

            devices = {leaf.device for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)}
            device = max(devices, key=lambda device: device.type != "cpu")
            if not kernels.disabled():
                _warn(device.type)
            if not _runs(runs_on, device.type):
                on_cpu = tree_map_only(Tensor, Tensor.cpu, arguments)
                return tree_map_only(Tensor, lambda x: x.to(device), implementation(*on_cpu))
            # The operators choose their precision themselves.
            mixed = torch.is_autocast_enabled(device.type)
            with torch.autocast(device.type, enabled=False) if mixed else nullcontext():
                return function(*arguments)

        FALLBACKS[name] = kernels.implement(name, "CompositeExplicitAutograd")(fallback)
        implementation = getattr(getattr(torch.ops.detlite, packet), overload or "default")

        @wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            return implementation(*arguments, **named)

        return cast(F, call)

    return register


def _runs(runs_on: str, device_type: str) -> bool:
    if runs_on == "torchvision" and device_type != "cpu":
        return _has_kernel("torchvision::nms", device_type)
    return runs_on == "any" or device_type == "cpu"


@cache
def _warn(device_type: str) -> None:
    if device_type == "cpu":  # importing detlite.ops has already warned
        return
    home = "ROCM_HOME" if torch.version.hip else "CUDA_HOME"  # torch calls both "cuda"
    advice = f" Build detlite with {home} set to have them." if device_type == "cuda" else ""
    logger.warning(
        "detlite has no compiled kernels for %s and uses torchvision's and PyTorch's own operators "
        "there: the results are the same, but it is slower.%s", device_type, advice,
    )  # fmt: skip


@contextmanager
def use_fallback_ops() -> Iterator[None]:
    """Replace the CPU kernels by the fallbacks inside a `with` block, for tests and benchmarks.

    To run a whole program without kernels, set DETLITE_KERNELS=0.
    """
    library = torch.library.Library("detlite", "IMPL")
    for name, kernel in FALLBACKS.items():
        library.impl(name, kernel, "CPU", allow_override=True)
    try:
        yield
    finally:
        library._destroy()
