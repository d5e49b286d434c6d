"""Compute the shapes of maps without computing the maps."""

from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call


def call_with_fake_tensors(module: nn.Module, height: int, width: int) -> Any:
    """Call a module on fake images [2, C, height, width]: shapes are computed, values are not."""
    state = [*module.named_parameters(), *module.named_buffers()]
    dtype = next(module.parameters()).dtype
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True), torch.device("cpu"):
        fake_state = {name: torch.empty(x.shape, dtype=x.dtype) for name, x in state}
        channels = getattr(module, "in_channels", 3)
        images = torch.empty(2, channels, height, width, dtype=dtype)
        return functional_call(module, fake_state, images)
