"""Evaluation: detections as COCO results, and the evaluators that compute metrics from them."""

from .coco import evaluate_coco
from .detection_results import coco_results, to_coco_results
from .evaluators import EVALUATORS, Evaluator
from .metrics import MetricValue
from .results import Results

__all__ = [
    "EVALUATORS",
    "Evaluator",
    "MetricValue",
    "Results",
    "coco_results",
    "evaluate_coco",
    "to_coco_results",
]
