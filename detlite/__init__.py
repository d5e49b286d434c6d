"""detlite: a small, fast, readable Mask R-CNN framework with compiled RoI kernels.

The public names are imported on first use, so that `detlite --help` does not wait for torch.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detlite import ops as ops
    from detlite.apps.api import Result, evaluate, train
    from detlite.config import load_config
    from detlite.errors import ConfigError
    from detlite.inference.optimize import optimize
    from detlite.inference.predictor import Predictor, load_checkpoint
    from detlite.modeling import build_model
    from detlite.modeling.rcnn import GeneralizedRCNN

__version__ = "0.1.0"
_MODULES = {
    "ConfigError": "detlite.errors",
    "GeneralizedRCNN": "detlite.modeling.rcnn",
    "Predictor": "detlite.inference.predictor",
    "Result": "detlite.apps.api",
    "build_model": "detlite.modeling",
    "evaluate": "detlite.apps.api",
    "load_checkpoint": "detlite.inference.predictor",
    "load_config": "detlite.config",
    "optimize": "detlite.inference.optimize",
    "train": "detlite.apps.api",
}
# A literal, so that type checkers and editors know the names.
__all__ = [
    "ConfigError",
    "GeneralizedRCNN",
    "Predictor",
    "Result",
    "build_model",
    "evaluate",
    "load_checkpoint",
    "load_config",
    "optimize",
    "train",
]


def __getattr__(name: str) -> object:
    if name == "ops":
        return importlib.import_module("detlite.ops")
    if name == "_C":
        importlib.import_module("torch")  # loads the libraries that the kernels link to
        return importlib.import_module("detlite._C")
    if name not in _MODULES:
        raise AttributeError(f"module 'detlite' has no attribute {name!r}")
    importlib.import_module("detlite.threads").configure_cpu_libraries()  # before torch is imported
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "ops"})
