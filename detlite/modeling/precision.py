"""Choose the precision of arithmetic for training and evaluation."""

import logging
import platform
import re
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path

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

    Other values are returned unchanged. If the processor is slower in one of them than in float32,
    a warning is logged once per process.
    """
    if dtype == "auto":
        return "bfloat16" if "bfloat16" in native_formats(device) else "float32"
    if device.type == "cpu" and dtype in _HALF_TYPES and dtype not in native_formats(device):
        _warn_of_slow_format(dtype)
    return dtype


def native_formats(device: torch.device) -> list[str]:
    """Return float32 and the formats in which `device` multiplies matrices faster.

    Only float32 on MPS and XPU, where nothing has been measured.
    """
    if device.type == "cpu":
        return [name for name, by in processor_formats().items() if by or name == "float32"]
    if device.type != "cuda":
        return ["float32"]
    bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return ["float32", "bfloat16", "float16"] if bfloat16 else ["float32", "float16"]


def processor_formats() -> dict[str, list[str]]:
    """Return for each format the instructions of this CPU that make it faster than float32.

    Two are not listed, because torch's convolutions are slower with them than in float32:
    AVX512-FP16, and AVX512-BF16 of Intel's processors (docs/devices.md).
    """
    cpu = torch.cpu  # get_capabilities() came after torch 2.11
    amx = ["AMX"] if cpu._is_amx_tile_supported() else []
    avx512 = cpu._is_avx512_bf16_supported()
    half = getattr(cpu, "_is_amx_fp16_supported", lambda: False)()
    return {
        "float32": [],
        "bfloat16": amx + ["AVX512-BF16"] * (avx512 and "Intel" not in processor_name()),
        "float16": ["AMX-FP16"] * half,
        "int8": amx + ["AVX512-VNNI"] * cpu._is_vnni_supported(),
    }


@cache
def processor_name() -> str:
    """Return the name of the processor, which contains its vendor on x86."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(errors="replace") if cpuinfo.exists() else ""
    found = re.search(r"model name\s*: (.*)", text)
    return found[1] if found else platform.processor() or platform.machine()


def describe_formats(device: torch.device) -> str:
    """Describe the native formats of `device`, and those in which it is slower than in float32."""
    native = native_formats(device)
    instructions = processor_formats() if device.type == "cpu" else {}
    named = [
        f"{name} ({', '.join(instructions[name])})" if instructions.get(name) else name
        for name in native
    ]
    slower = [name for name in _HALF_TYPES if instructions and name not in native]
    slow = f"; {' and '.join(slower)} would be slower than float32" if slower else ""
    return f"multiplies {', '.join(named)} natively{slow}"


@cache
def _warn_of_slow_format(dtype: str) -> None:
    required = {"bfloat16": "AMX, or AVX512-BF16 of AMD", "float16": "AMX-FP16"}[dtype]
    logger.warning(
        "DTYPE is %s, which is slower than float32 on most processors without %s, such as this "
        "one. Set DTYPE to auto or float32.", dtype, required,
    )  # fmt: skip
