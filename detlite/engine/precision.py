"""How precise the arithmetic is, for training and evaluation alike."""

from __future__ import annotations

import logging
from functools import cache

import torch

logger = logging.getLogger(__name__)


def autocast(dtype: str, device: torch.device) -> torch.autocast:
    """Mixed precision for the config's DTYPE; nothing changes for float32."""
    name = resolve_dtype(dtype, device)
    return torch.autocast(device.type, getattr(torch, name), enabled=name != "float32")


def resolve_dtype(dtype: str, device: torch.device) -> str:
    """The config's DTYPE; for "auto" bfloat16 where `device` multiplies it faster, else float32.

    A stated bfloat16 is taken, but once a process is warned where a processor only emulates it.
    """
    if dtype == "auto":
        return "bfloat16" if has_bfloat16(device) else "float32"
    if dtype == "bfloat16" and device.type == "cpu" and not has_bfloat16(device):
        _warn_of_emulation()
    return dtype


def has_bfloat16(device: torch.device) -> bool:
    """Whether `device` has instructions that multiply bfloat16."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        # torch.cpu.get_capabilities() came after torch 2.11.
        return torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return False


def native_formats(device: torch.device) -> list[str]:
    """The formats that matrices are multiplied in by instructions of their own on `device`.

    Of float16 on processors torch tells nothing; int8 are the dot products of AVX512-VNNI.
    """
    formats = ["float32"]
    if has_bfloat16(device):
        formats.append("bfloat16")
    if device.type == "cuda":
        formats.append("float16")
    if device.type == "cpu" and torch.cpu._is_vnni_supported():
        formats.append("int8")
    return formats


@cache
def _warn_of_emulation() -> None:
    logger.warning(
        "DTYPE is bfloat16, which this processor has no instructions for (AMX or AVX512-BF16) and "
        "emulates, at a third of float32's speed or less: set DTYPE auto, or float32"
    )
