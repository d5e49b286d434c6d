"""How precise the arithmetic is, for training and evaluation alike."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch

logger = logging.getLogger(__name__)

_HALF = ("bfloat16", "float16")


def autocast(dtype: str, device: torch.device) -> AbstractContextManager[None]:
    """Mixed precision for the config's DTYPE; nothing changes for float32."""
    name = resolve_dtype(dtype, device)
    if name == "float32" and not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, getattr(torch, name), enabled=name != "float32")


def resolve_dtype(dtype: str, device: torch.device) -> str:
    """The config's DTYPE; for "auto" bfloat16 where `device` multiplies it faster, else float32.

    A stated half type is taken, but once a process is warned where a processor only emulates it.
    """
    if dtype == "auto":
        return "bfloat16" if has_bfloat16(device) else "float32"
    if device.type == "cpu" and dtype in _HALF and dtype not in native_formats(device):
        _warn_of_emulation(dtype)
    return dtype


def has_bfloat16(device: torch.device) -> bool:
    """Whether `device` has instructions that multiply bfloat16; of MPS and XPU it is not known."""
    return "bfloat16" in native_formats(device)


def native_formats(device: torch.device) -> list[str]:
    """The formats that matrices are multiplied in by instructions of their own on `device`.

    Those that are known: of MPS and XPU, on which nothing was measured, float32 alone.
    """
    if device.type == "cpu":
        return [name for name, by in processor_formats().items() if by or name == "float32"]
    formats = ["float32"]
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            formats.append("bfloat16")
        formats.append("float16")
    return formats


def processor_formats() -> dict[str, list[str]]:
    """For each format the instructions that this processor multiplies it by: none, it emulates it.

    The one place that asks the processor. float16 by AVX512-FP16 is left out: torch's convolutions
    are slower with it than in float32 (docs/devices.md).
    """
    cpu = torch.cpu  # whose get_capabilities() came after torch 2.11
    amx = ["AMX"] if cpu._is_amx_tile_supported() else []
    half = getattr(cpu, "_is_amx_fp16_supported", lambda: False)()
    return {
        "float32": [],
        "bfloat16": amx + ["AVX512-BF16"] * cpu._is_avx512_bf16_supported(),
        "float16": ["AMX-FP16"] * half,
        "int8": amx + ["AVX512-VNNI"] * cpu._is_vnni_supported(),
    }


def formats_in_words(device: torch.device) -> str:
    """What `device` is fast at, and the half types that it is not, for people."""
    native = native_formats(device)
    instructions = processor_formats() if device.type == "cpu" else {}
    named = [
        f"{name} ({', '.join(instructions[name])})" if instructions.get(name) else name
        for name in native
    ]
    emulated = [name for name in _HALF if instructions and name not in native]
    slow = f"; {' and '.join(emulated)} would be slower than float32" if emulated else ""
    return f"multiplies {', '.join(named)} natively{slow}"


@cache
def _warn_of_emulation(dtype: str) -> None:
    needs = {"bfloat16": "AMX or AVX512-BF16", "float16": "AMX-FP16"}[dtype]
    logger.warning(
        "DTYPE is %s, which this processor has no fast instructions for (%s) and emulates, more "
        "slowly than it computes in float32: set DTYPE auto, or float32", dtype, needs,
    )  # fmt: skip
