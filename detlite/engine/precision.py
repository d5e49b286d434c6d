"""How precise the arithmetic is, for training and evaluation alike."""

from __future__ import annotations

import torch


def autocast(dtype: str, device: torch.device) -> torch.autocast:
    """Mixed precision for the config's DTYPE; nothing changes for float32."""
    name = resolve_dtype(dtype, device)
    return torch.autocast(device.type, getattr(torch, name), enabled=name != "float32")


def resolve_dtype(dtype: str, device: torch.device) -> str:
    """The config's DTYPE; for "auto" bfloat16 where `device` multiplies it faster, else float32."""
    if dtype != "auto":
        return dtype
    fast = False
    if device.type == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    elif device.type == "cpu":
        # torch.cpu.get_capabilities() came after torch 2.11.
        fast = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return "bfloat16" if fast else "float32"
