"""Choose the precision of arithmetic for training and evaluation."""

import logging
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

_HALF_TYPES = ("bfloat16", "float16")


def at_least_float32(x: Tensor) -> Tensor:
    """Convert half types to float32, because they are too coarse for coordinates and scores."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def autocast(dtype: str, device: torch.device) -> AbstractContextManager[None]:
    """Return the autocast context of the config's DTYPE; it does nothing for float32."""
    name = resolve_dtype(dtype, device)
    if name == "float32" and not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, getattr(torch, name), enabled=name != "float32")


def resolve_dtype(dtype: str, device: torch.device) -> str:
    """Replace DTYPE "auto" by bfloat16 if `device` multiplies it faster than float32, else float32.

    Other values are returned unchanged. If the processor can only emulate one of them, a warning is
    logged once per process.
    """
    if dtype == "auto":
        return "bfloat16" if "bfloat16" in native_formats(device) else "float32"
    if device.type == "cpu" and dtype in _HALF_TYPES and dtype not in native_formats(device):
        _warn_of_emulation(dtype)
    return dtype


def native_formats(device: torch.device) -> list[str]:
    """Return the formats that `device` multiplies matrices in without emulation.

    Only float32 on MPS and XPU, where nothing has been measured.
    """
    if device.type == "cpu":
        return [name for name, by in processor_formats().items() if by or name == "float32"]
    if device.type != "cuda":
        return ["float32"]
    bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return ["float32", "bfloat16", "float16"] if bfloat16 else ["float32", "float16"]


def processor_formats() -> dict[str, list[str]]:
    """Return for each format the instructions of this CPU that multiply it; none means emulation.

    AVX512-FP16 is not listed: torch's convolutions are slower with it than in float32
    (docs/devices.md).
    """
    cpu = torch.cpu  # get_capabilities() came after torch 2.11
    amx = ["AMX"] if cpu._is_amx_tile_supported() else []
    half = getattr(cpu, "_is_amx_fp16_supported", lambda: False)()
    return {
        "float32": [],
        "bfloat16": amx + ["AVX512-BF16"] * cpu._is_avx512_bf16_supported(),
        "float16": ["AMX-FP16"] * half,
        "int8": amx + ["AVX512-VNNI"] * cpu._is_vnni_supported(),
    }


def describe_formats(device: torch.device) -> str:
    """Describe the formats that `device` multiplies natively, and those it would emulate."""
    native = native_formats(device)
    instructions = processor_formats() if device.type == "cpu" else {}
    named = [
        f"{name} ({', '.join(instructions[name])})" if instructions.get(name) else name
        for name in native
    ]
    emulated = [name for name in _HALF_TYPES if instructions and name not in native]
    slow = f"; {' and '.join(emulated)} would be slower than float32" if emulated else ""
    return f"multiplies {', '.join(named)} natively{slow}"


@cache
def _warn_of_emulation(dtype: str) -> None:
    required = {"bfloat16": "AMX or AVX512-BF16", "float16": "AMX-FP16"}[dtype]
    logger.warning(
        "DTYPE is %s, but this processor lacks the instructions for it (%s) and emulates it, which "
        "is slower than float32. Set DTYPE to auto or float32.", dtype, required,
    )  # fmt: skip
