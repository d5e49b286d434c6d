"""Load the compiled kernels, or define the operators without them.

`detlite._C` registers the operators `torch.ops.detlite.*` with their CPU and CUDA kernels. If it is
not built, cannot be loaded, or is disabled by the environment variable DETLITE_KERNELS=0, only the
schemas are defined here, and every call uses `detlite.ops.fallback`.

The kernels use torch's stable ABI: one binary serves every torch from OLDEST_TORCH on.
"""

import logging
import os
import re
import sys
from pathlib import Path

import torch

from .schemas import SCHEMAS

logger = logging.getLogger(__name__)

OLDEST_TORCH = (2, 11)
BUILD_COMMAND = "pip install --no-build-isolation -e ."


def location() -> str:
    """Return the path of the compiled kernels, or why they are not used."""
    if _library is None:
        return str(sys.modules["detlite._C"].__file__)
    return "disabled by DETLITE_KERNELS=0" if disabled() else "not built, or they cannot be loaded"


def disabled() -> bool:
    """Return True if DETLITE_KERNELS=0 disables the kernels."""
    return os.environ.get("DETLITE_KERNELS") == "0"


def why_unavailable(error: Exception) -> str:
    """Explain in one line why `detlite._C` cannot be imported, and what to do."""
    release = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if release and tuple(map(int, release.groups())) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        return (
            f"the compiled kernels need torch >= {oldest}, this is torch {torch.__version__}. "
            "Run `pip install --upgrade torch torchvision`"
        )
    package = Path(__file__).parents[1]
    if not _has_binary(package):
        for folder in (Path(entry, "detlite").resolve() for entry in sys.path):
            if folder != package.resolve() and _has_binary(folder):
                return (
                    f"Python imports detlite from its sources in {package}, which hide the "
                    f"installed package with the compiled kernels in {folder}. Start Python in "
                    f"another folder, or run `{BUILD_COMMAND}` to use the sources"
                )
        return (
            "the compiled kernels (detlite._C) are not built. To build them, run "
            f"`{BUILD_COMMAND}` in the detlite folder, with a C++ compiler"
        )
    gpu = re.search(
        r"lib(?:cudart\.so\.(?P<cuda>\d+)|(?:torch|c10)_cuda\.so|"
        r"(?P<rocm>amdhip64\.so|(?:torch|c10)_hip\.so))", str(error),
    )  # fmt: skip
    if gpu:
        target = "ROCm" if gpu["rocm"] else f"CUDA {gpu['cuda'] or ''}".strip()
        return (
            f"the compiled kernels are built for {target}, but torch {torch.__version__} for "
            f"{_torch_platform()}. Install torch for {target}, or a detlite wheel for the CPU"
        )
    return (
        f"the compiled kernels (detlite._C) cannot be loaded: {error}. Reinstall detlite, or run "
        f"`{BUILD_COMMAND}` in the detlite folder"
    )


def _has_binary(package: Path) -> bool:
    return any(file.suffix in (".so", ".pyd") for file in package.glob("_C.*"))


def _torch_platform() -> str:
    if torch.version.hip:
        return f"ROCm {torch.version.hip}"
    return f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU only"


def _load() -> torch.library.Library | None:
    """Import `detlite._C`. If that fails, return a library that defines the operators instead.

    Raises:
        ImportError: `detlite._C` was built from other sources and lacks operators.
    """
    try:
        if disabled():
            raise ImportError("disabled")
        from detlite import _C
    except ImportError as error:
        if not disabled():
            logger.warning(
                "%s. Until then, detlite uses torchvision's and PyTorch's own operators: the "
                "results are the same, but it is slower.",
                why_unavailable(error),
            )
        library = torch.library.Library("detlite", "DEF")
        for schema in SCHEMAS:
            library.define(schema)
        return library
    missing = {name.partition("(")[0].partition(".")[0] for name in SCHEMAS} - {*dir(_C)}
    if missing:
        raise ImportError(
            f"the compiled kernels lack {', '.join(sorted(missing))}: they were built from other "
            f"sources. Run `{BUILD_COMMAND}` in the detlite folder"
        )
    return None


_library = _load()  # the definitions last as long as the object
