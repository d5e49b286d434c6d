"""The precision of what follows the convolutions: coordinates, scores and losses."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """Half types as float32, as neither coordinates nor scores fit them; float64 as it is."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
