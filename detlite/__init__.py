"""detlite: a small, fast, readable Mask R-CNN framework with compiled RoI kernels."""

from . import interrupts as interrupts  # first: from here on Ctrl-C ends the command by one line
from . import kernels as kernels  # imports torch, which loads the libraries that _C links to

if refused := kernels.refusal():
    raise ImportError(refused)
try:
    from . import _C as _C  # registers torch.ops.detlite
    from . import ops as ops
except (ImportError, AttributeError) as error:  # not built, or built from older sources
    raise ImportError(kernels.remedy(error)) from error

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
