"""Where tensors live and how precise the arithmetic is, for training and evaluation alike."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def autocast(dtype: str, device: torch.device) -> torch.autocast:
    """Mixed precision for the config's DTYPE; nothing changes for float32."""
    return torch.autocast(device.type, _DTYPES[dtype], enabled=dtype != "float32")


def to_device(
    images: list[Tensor], targets: list[dict[str, Any]], device: torch.device
) -> tuple[list[Tensor], list[dict[str, Any]]]:
    """The batch with all its tensors on `device`."""
    return (
        [image.to(device, non_blocking=True) for image in images],
        [
            {
                name: value.to(device, non_blocking=True) if isinstance(value, Tensor) else value
                for name, value in target.items()
            }
            for target in targets
        ],
    )
