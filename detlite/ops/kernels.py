"""Why the compiled kernels are missing, and what to do.

The kernels use torch's stable ABI: one binary serves every torch from OLDEST_TORCH on.
"""

import re
import sys
from pathlib import Path

import torch

OLDEST_TORCH = (2, 11)
BUILD_COMMAND = "pip install --no-build-isolation -e ."


def why_unavailable(error: Exception) -> str:
    """Explain in one line why `detlite._C` cannot be imported, and what to do."""
    release = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if release and tuple(map(int, release.groups())) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        return (
            f"the compiled kernels need torch >= {oldest}, this is torch {torch.__version__}. "
            "Run `pip install --upgrade torch torchvision`"
        )
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
    library = re.search(r"lib(cudart\.so\.(\d+)|\w+_cuda\.so|amdhip64\.so|\w+_hip\.so)", str(error))
    if library:
        target = "ROCm" if "hip" in library[0] else f"CUDA {library[2] or ''}".strip()
        found = "the CPU only" if torch.version.cuda is None else f"CUDA {torch.version.cuda}"
        found = f"ROCm {torch.version.hip}" if torch.version.hip else found
        return (
            f"the compiled kernels are built for {target}, but torch {torch.__version__} for "
            f"{found}. Install torch for {target}, or a detlite wheel for the CPU"
        )
    return (
        f"the compiled kernels (detlite._C) cannot be loaded: {error}. Reinstall detlite, or run "
        f"`{BUILD_COMMAND}` in the detlite folder"
    )
