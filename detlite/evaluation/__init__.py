"""Evaluation: detections as COCO results, and the evaluators that compute metrics from them.

A training run checks its evaluators before the first step, so only these are imported at once.
"""

import importlib
from typing import TYPE_CHECKING

from .evaluators import EVALUATORS, Evaluator

if TYPE_CHECKING:
    from .coco import evaluate_coco
    from .detection_results import coco_results, to_coco_results
    from .results import Results

__all__ = [
    "EVALUATORS",
    "Evaluator",
    "Results",
    "coco_results",
    "evaluate_coco",
    "to_coco_results",
]
_MODULES = {
    "Results": ".results",
    "coco_results": ".detection_results",
    "evaluate_coco": ".coco",
    "to_coco_results": ".detection_results",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name], __name__), name)
