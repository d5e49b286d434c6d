"""Data structures of the model: boxes, masks, keypoints and batches of images and records."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from typing import Any

import torch
from torch import Tensor


def on_cpu_by_default(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function whose new tensors are on the CPU unless they name their device.

    `torch.set_default_device` of the caller would move them.
    """

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        is_cpu = torch.compiler.is_compiling() or torch.get_default_device().type == "cpu"
        with nullcontext() if is_cpu else torch.device("cpu"):
            return function(*args, **kwargs)

    return call


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Copy a tensor to a device, unless it is there.

    The host does not wait for a copy to a GPU. It would wait until the GPU has finished its work if
    the memory were not page-locked.
    """
    if torch.device(device).type != "cuda" or tensor.is_cuda or tensor.requires_grad:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
