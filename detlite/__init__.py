"""detlite: a small, fast, readable Mask R-CNN framework with compiled RoI kernels."""

import torch  # noqa: F401  (loads the libraries that _C links to, so it must come first)

try:
    from . import _C as _C  # registers torch.ops.detlite
    from . import ops as ops
except (ImportError, AttributeError) as error:  # not built, or built from older sources
    raise ImportError(
        f"detlite._C, the compiled kernels, cannot be loaded ({error}): build it with "
        "`pip install --no-build-isolation -e .` in the detlite folder"
    ) from error

from .api import Result, evaluate, train
from .config import ConfigError, load_config
from .inference.optimize import optimize
from .inference.predictor import Predictor, load_checkpoint
from .modeling import build_model
from .modeling.rcnn import GeneralizedRCNN

__version__ = "0.1.0"
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
