"""The operators without compiled kernels, through torchvision and plain PyTorch.

The dispatcher calls them on devices without a kernel of ours (MPS, XPU, CUDA in a build for the
CPU), and everywhere if the kernels are not built. RoIAlign, RoIPool and NMS use torchvision's
operators; a device that has none runs them on the CPU. Shapes, gradients and errors are those of
the kernels.

Memory is bounded, but the host waits for the device a few times in each call.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, wraps
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from detlite.ops import kernels
from detlite.ops.schemas import SCHEMAS

from . import evaluation, focal_loss, keypoints, masks, matching, nms, roi_align, roi_pool

logger = logging.getLogger(__name__)

_MODULES = (evaluation, focal_loss, keypoints, masks, matching, nms, roi_align, roi_pool)
_FUNCTIONS = {name: value for module in _MODULES for name, value in vars(module).items()}
_OPERATORS = [schema.partition("(")[0] for schema in SCHEMAS]
# Each operator by the function of its name. RoI operators on one map call those on several maps.
FALLBACKS: dict[str, Callable[..., Any]] = {
    name: _FUNCTIONS[name.removesuffix(".maps")]
    for name in _OPERATORS
    if f"{name}.maps" not in _OPERATORS
}
# Operators that call torchvision's operators, and those that compute in NumPy.
_NEED_TORCHVISION = ("nms", "batched_nms", "padded_nms", "roi_")
_NEED_CPU = (
    "crop_masks", "paste_masks_rle", "mask_intersections", "match_detections", "encode_polygons",
    "box_overlaps", "precision_recall",
)  # fmt: skip


def has_kernels(device: torch.device | str) -> bool:
    """Return True if the operators have compiled kernels for a device."""
    return _has_kernel("detlite::nms", torch.device(device).type)


def _has_kernel(operator: str, device_type: str) -> bool:
    key = torch._C._dispatch_key_for_device(device_type)
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator, key)


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


def _for_any_device(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def kernel(*arguments: Any) -> Any:
        # Registers torch.ops.torchvision. Its import takes longer than all of detlite's.
        import torchvision  # noqa: F401

        device = _device_of(arguments)
        if not kernels.disabled():
            _warn(device.type)
        if device.type != "cpu" and not _runs_on(name, device.type):
            on_cpu = tree_map_only(Tensor, Tensor.cpu, arguments)
            packet, _, overload = name.partition(".")
            operator = getattr(getattr(torch.ops.detlite, packet), overload or "default")
            return tree_map_only(Tensor, lambda x: x.to(device), operator(*on_cpu))
        # The operators choose their precision themselves.
        mixed = torch.is_autocast_enabled(device.type)
        with torch.autocast(device.type, enabled=False) if mixed else nullcontext():
            return function(*arguments)

    return kernel


def _runs_on(name: str, device_type: str) -> bool:
    if name.startswith(_NEED_TORCHVISION):
        return _has_kernel("torchvision::nms", device_type)
    return name not in _NEED_CPU


def _device_of(arguments: Any) -> torch.device:
    """Return the device of the tensors that are not on the CPU, if any."""
    devices = [leaf.device for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)]
    return next((device for device in devices if device.type != "cpu"), devices[0])


KERNELS = {name: _for_any_device(name, function) for name, function in FALLBACKS.items()}
for _name, _kernel in KERNELS.items():
    # For every backend without a compiled kernel.
    torch.library.impl(f"detlite::{_name}", "CompositeExplicitAutograd")(_kernel)


@contextmanager
def use_fallback_ops() -> Iterator[None]:
    """Replace the CPU kernels by the fallbacks inside a `with` block, for tests and benchmarks.

    To run a whole program without kernels, set DETLITE_KERNELS=0.
    """
    library = torch.library.Library("detlite", "IMPL")
    for name, kernel in KERNELS.items():
        library.impl(name, kernel, "CPU", allow_override=True)
    try:
        yield
    finally:
        library._destroy()
