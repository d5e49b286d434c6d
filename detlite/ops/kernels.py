"""Why the compiled kernels cannot be loaded, and what to do about it, in a line.

They are built on torch's stable ABI: one binary serves every torch from OLDEST_TORCH on.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch

OLDEST_TORCH = (2, 11)


def refusal() -> str:
    """What to do about a torch that is too old for the kernels; "" where it is not."""
    release = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if release is None or tuple(map(int, release.groups())) >= OLDEST_TORCH:
        return ""
    oldest = ".".join(map(str, OLDEST_TORCH))
    return (
        f"detlite needs torch >= {oldest}, and this is torch {torch.__version__}: "
        "`pip install --upgrade torch torchvision`"
    )


def _platform() -> str:
    """What torch was built for."""
    if torch.version.hip:
        return f"ROCm {torch.version.hip}"
    return f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU alone"


def remedy(error: Exception) -> str:
    """What to do about the error by which detlite._C, or an operator in it, was not found."""
    if not any(Path(__file__).parents[1].glob("_C.*.so")):
        return (
            "detlite._C, the compiled kernels, is not built: "
            "`pip install --no-build-isolation -e .` in the detlite folder"
        )
    gpu = re.search(
        r"lib(?:cudart\.so\.(?P<cuda>\d+)|(?:torch|c10)_cuda\.so|"
        r"(?P<rocm>amdhip64\.so|(?:torch|c10)_hip\.so))", str(error),
    )  # fmt: skip
    if gpu:
        built = "ROCm" if gpu["rocm"] else f"CUDA {gpu['cuda'] or ''}".strip()
        return (
            f"detlite's kernels were built for {built}, and torch {torch.__version__} for "
            f"{_platform()}: install a torch for {built}, or a wheel of detlite for the CPU"
        )
    return (
        f"detlite._C, the compiled kernels, cannot be loaded ({error}): install detlite again "
        "(`pip install --force-reinstall --no-deps` and the wheel, or "
        "`pip install --no-build-isolation -e .` in the detlite folder)"
    )


if refused := refusal():
    raise ImportError(refused)
try:
    from detlite import _C as _C  # registers torch.ops.detlite
except (ImportError, AttributeError) as error:  # not built, or built from older sources
    raise ImportError(remedy(error)) from error
