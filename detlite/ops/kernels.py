"""Load the compiled kernels, or define the operators without them.

`detlite._C` registers the operators `torch.ops.detlite.*` with their CPU and CUDA kernels. If it is
not built, cannot be loaded, or is disabled by the environment variable DETLITE_KERNELS=0, the
signatures of the fallbacks define the operators (`dispatch.py`), and every call uses these.

The kernels use torch's stable ABI: one binary serves every torch from OLDEST_TORCH on.
"""

import logging
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

logger = logging.getLogger(__name__)

OLDEST_TORCH = (2, 11)
BUILD_COMMAND = "pip install --no-build-isolation -e ."

F = TypeVar("F", bound=Callable[..., Any])


def location() -> str:
    """Return the path of the compiled kernels, or why they are not used."""
    if _module is not None:
        return str(_module.__file__)
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


def _load() -> Any:
    """Return the module `detlite._C`, or None with a warning."""
    if disabled():
        return None
    try:
        from detlite import _C
    except ImportError as error:
        logger.warning(
            "%s. Until then, detlite uses torchvision's and PyTorch's own operators: the results "
            "are the same, but it is slower.", why_unavailable(error),
        )  # fmt: skip
        return None
    return _C


_module = _load()
# The operators are defined as long as this object exists.
_library = torch.library.Library("detlite", "DEF" if _module is None else "FRAGMENT")


def implement(operator: str, key: str) -> Callable[[F], F]:
    """Register a function as the implementation of an operator for a dispatch key.

    Raises:
        ImportError: `detlite._C` was built from other sources and lacks the operator.
    """

    def register(function: F) -> F:
        name = operator.partition(".")[0]
        if _module is None:
            schema = torch.library.infer_schema(function, mutates_args=())
            _library.define(operator + schema.replace("SymInt", "int"))
        elif not hasattr(_module, name):
            raise ImportError(
                f"the compiled kernels lack {name}: they were built from other sources. Run "
                f"`{BUILD_COMMAND}` in the detlite folder"
            )
        _library.impl(operator, function, key)
        return function

    return register
