"""Load the compiled kernels and complete the operators `torch.ops.detlite.*` in Python.

`detlite._C` registers the schemas of the operators with their CPU and CUDA kernels (csrc/). The
modules of this folder add the rest of each operator by the decorator `operator`: its fallback, the
shapes of its results for tracing, and its gradient.

A fallback is a Python function with the signature of the operator. The dispatcher calls it on
devices without a compiled kernel (MPS, XPU, CUDA in a build for the CPU). If `detlite._C` is not
built, cannot be loaded or is disabled by DETLITE_KERNELS=0, every call uses the fallback, and its
signature is the schema. Shapes, gradients and checks of arguments are the same as for the kernels,
except that the contents of integer tensors are not checked.
"""

import importlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves, tree_map_only

from .kernels import BUILD_COMMAND, why_unavailable

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])


def _load() -> Any:
    """Return the module `detlite._C`, or None with a warning."""
    if kernels_disabled():
        return None
    try:
        return importlib.import_module("detlite._C")
    except ImportError as error:
        logger.warning(
            "%s. Until then, detlite uses torchvision's and PyTorch's own operators: the results "
            "are the same, but it is slower.", why_unavailable(error),
        )  # fmt: skip
        return None


def kernels_location() -> str:
    """Return the path of the compiled kernels, or why they are not used."""
    problem = "not built, or they cannot be loaded"
    if kernels_disabled():
        problem = "disabled by DETLITE_KERNELS=0"
    return problem if compiled is None else str(compiled.__file__)


def kernels_disabled() -> bool:
    """Return True if DETLITE_KERNELS=0 disables the kernels."""
    return os.environ.get("DETLITE_KERNELS") == "0"


compiled = _load()
FALLBACKS: dict[str, Callable[..., Any]] = {}  # by the name of the operator
# The definitions of operators and their implementations in Python last as long as this object.
_library = torch.library.Library("detlite", "DEF" if compiled is None else "FRAGMENT")


def has_kernels(device: torch.device | str) -> bool:
    """Return True if the operators have compiled kernels for a device."""
    return _has_kernel("detlite::nms", torch.device(device).type)


def operator(
    name: str,
    runs_on: Literal["any", "torchvision", "cpu"],
    shapes: Callable[..., Any],
    differentiate: Callable[..., Any] | None = None,
    save: Callable[..., None] | None = None,
) -> Callable[[F], F]:
    """Return a decorator for the fallback of `torch.ops.detlite.<name>`, which completes it.

    Args:
        name: name of the operator, with its overload if it has one: "roi_align_forward.maps".
        runs_on: devices that the fallback runs on: any device, devices with kernels of
            torchvision, or only the CPU. Arguments on another device are computed on the CPU.
        shapes: returns results without values, for tracing (`torch.library.register_fake`).
        differentiate, save: the functions `backward` and `setup_context` of
            `torch.library.register_autograd`.

    Raises:
        ImportError: `detlite._C` was built from other sources and lacks the operator.
    """

    def complete(fallback: F) -> F:
        def run(*arguments: Any) -> Any:
            # Registers torch.ops.torchvision. Importing it takes longer than importing detlite.
            import torchvision  # noqa: F401

            devices = {leaf.device for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)}
            device = max(devices, key=lambda device: device.type != "cpu")
            if not kernels_disabled():
                _warn(device.type)
            if not _runs(runs_on, device.type):
                on_cpu = tree_map_only(Tensor, Tensor.cpu, arguments)
                return tree_map_only(Tensor, lambda x: x.to(device), run(*on_cpu))
            # The operators choose their precision themselves.
            mixed = torch.is_autocast_enabled(device.type)
            with torch.autocast(device.type, enabled=False) if mixed else nullcontext():
                return fallback(*arguments)

        packet = name.partition(".")[0]
        if compiled is None:
            schema = torch.library.infer_schema(fallback, mutates_args=())
            _library.define(name + schema.replace("SymInt", "int"))
        elif not hasattr(compiled, packet):
            raise ImportError(
                f"the compiled kernels lack {packet}: they were built from other sources. Run "
                f"`{BUILD_COMMAND}` in the detlite folder"
            )
        _library.impl(name, run, "CompositeExplicitAutograd")
        FALLBACKS[name] = run
        torch.library.register_fake(f"detlite::{name}", _on_one_device(name, shapes))
        if differentiate is not None:
            torch.library.register_autograd(f"detlite::{name}", differentiate, setup_context=save)
        return fallback

    return complete


def refuse_second_derivative(ctx: Any, *grads: Any) -> None:
    """Raise RuntimeError, as the derivative of an operator that computes a gradient."""
    raise RuntimeError("detlite's operators can be differentiated once, not twice")


def _on_one_device(name: str, shapes: F) -> Callable[..., Any]:
    """Refuse tensors on "meta" together with others, whose results would be uninitialized."""

    def checked(*arguments: Any) -> Any:
        devices = {x.device.type for x in tree_leaves(arguments) if isinstance(x, Tensor)}
        if "meta" in devices and len(devices) > 1:
            raise RuntimeError(
                f"{name}: all tensors must be on one device, got {' and '.join(sorted(devices))}"
            )
        return shapes(*arguments)

    return checked


def _has_kernel(operator: str, device_type: str) -> bool:
    key = torch._C._dispatch_key_for_device(device_type)
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator, key)


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


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type of sums and coordinates: float32, or float64 for such features."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def check_no_tangent(op: str, *inputs: Tensor) -> None:
    """Check that no input has a tangent of forward-mode AD, which the operators would drop.

    Raises:
        RuntimeError: an input has a tangent.
    """
    if any(forward_ad.unpack_dual(x).tangent is not None for x in inputs):
        raise RuntimeError(
            f"{op} has no derivative in forward mode (torch.func.jvp, jacfwd, torch.autograd."
            "forward_ad): use reverse mode, such as torch.autograd.grad or "
            "torch.autograd.functional"
        )
