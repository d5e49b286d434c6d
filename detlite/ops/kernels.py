"""Why the compiled kernels are missing, and what to do.

The kernels use torch's stable ABI: one binary serves every torch from OLDEST_TORCH on.
"""

import sys
from pathlib import Path

import torch

OLDEST_TORCH = (2, 11)
BUILD_COMMAND = "pip install --no-build-isolation -e ."


def why_unavailable(error: Exception) -> str:
    """Explain in one line why `detlite._C` cannot be imported, and what to do."""
    package = Path(__file__).resolve().parents[1]
    folders = [package, *(Path(entry, "detlite").resolve() for entry in sys.path)]
    suffixes = {".so", ".pyd"}
    built = [x for x in folders if any(file.suffix in suffixes for file in x.glob("_C.*"))]
    if not built:
        return (
            "the compiled kernels (detlite._C) are not built. To build them, run "
            f"`{BUILD_COMMAND}` in the detlite folder, with a C++ compiler"
        )
    if package not in built:
        return (
            f"Python imports detlite from its sources in {package}, which hide the installed "
            f"package with the compiled kernels in {built[0]}. Start Python in another folder, or "
            f"run `{BUILD_COMMAND}` to use the sources"
        )
    oldest = ".".join(map(str, OLDEST_TORCH))
    gpu = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    return (
        f"the compiled kernels (detlite._C) cannot be loaded with torch {torch.__version__} "
        f"({gpu}): {error}. They need torch >= {oldest} for the CUDA or ROCm that they were built "
        f"for: install it, reinstall detlite, or run `{BUILD_COMMAND}` in the detlite folder"
    )
