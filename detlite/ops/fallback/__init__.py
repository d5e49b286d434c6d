"""The operators in plain torch, where there is no kernel of ours: MPS, XPU, CUDA without our CUDA
kernels, any other device that torch has.

The dispatcher comes here only where a device has no kernel of its own, so the CPU and CUDA lose
nothing. Shape and gradient rules are those of the kernels, in the files beside this folder.

What is bounded is memory, not how often the host waits: pooling reads the sizes of its RoIs, and
suppression whether a round still changed anything, so a step waits for such a device some times.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, wraps
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from .focal_loss import sigmoid_focal_loss_backward, sigmoid_focal_loss_forward
from .keypoints import heatmap_peaks
from .mask_cropping import crop_masks
from .matching import match_boxes
from .nms import batched_nms, nms, padded_nms
from .roi_align import roi_align_backward, roi_align_forward
from .roi_pool import roi_pool_backward, roi_pool_forward

logger = logging.getLogger(__name__)

# By the names of csrc/module.cpp.
PLAIN: dict[str, Callable[..., Any]] = {
    "nms": nms,
    "batched_nms": batched_nms,
    "padded_nms": padded_nms,
    "match_boxes": match_boxes,
    "crop_masks": crop_masks,
    "heatmap_peaks": heatmap_peaks,
    "roi_align_forward.maps": roi_align_forward,
    "roi_align_backward.maps": roi_align_backward,
    "roi_pool_forward.maps": roi_pool_forward,
    "roi_pool_backward.maps": roi_pool_backward,
    "sigmoid_focal_loss_forward": sigmoid_focal_loss_forward,
    "sigmoid_focal_loss_backward": sigmoid_focal_loss_backward,
}


def has_kernels(device: torch.device | str) -> bool:
    """Whether the operators are compiled for a device, and not those of this folder."""
    key = torch._C._dispatch_key_for_device(torch.device(device).type)
    return torch._C._dispatch_has_kernel_for_dispatch_key("detlite::nms", key)


@cache
def _warn_of(kind: str) -> None:
    home = "ROCM_HOME" if torch.version.hip else "CUDA_HOME"  # both are called cuda
    advice = f"; a build with {home} set has them (detlite doctor)" if kind == "cuda" else ""
    logger.warning(
        "detlite has no compiled kernels for %s: its operators run as plain torch there, and more "
        "slowly%s", kind, advice,
    )  # fmt: skip


def _on_any_device(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def kernel(*arguments: Any) -> Any:
        device = _device_of(arguments)
        _warn_of(device.type)
        # The operators choose their precision themselves.
        mixed = torch.is_autocast_enabled(device.type)
        with torch.autocast(device.type, enabled=False) if mixed else nullcontext():
            return function(*arguments)

    return kernel


def _device_of(arguments: Any) -> torch.device:
    """That of the tensors which are not on the CPU."""
    devices = [leaf.device for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)]
    return next((device for device in devices if device.type != "cpu"), devices[0])


KERNELS = {name: _on_any_device(function) for name, function in PLAIN.items()}
for _name, _kernel in KERNELS.items():
    # For every backend that has no kernel of its own.
    torch.library.impl(f"detlite::{_name}", "CompositeExplicitAutograd")(_kernel)


@contextmanager
def instead_of_kernels() -> Iterator[None]:
    """Within it the CPU has the plain operators too: to test and to measure them."""
    library = torch.library.Library("detlite", "IMPL")
    for name, kernel in KERNELS.items():
        library.impl(name, kernel, "CPU", allow_override=True)
    try:
        yield
    finally:
        library._destroy()
