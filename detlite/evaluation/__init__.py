"""Evaluation: detections as COCO results, and the evaluators that measure them."""

from .coco import evaluate_coco
from .evaluators import EVALUATORS, Evaluator
from .results import categories_of, coco_results, to_coco_results, write_results
from .table import format_table

__all__ = [
    "EVALUATORS",
    "Evaluator",
    "categories_of",
    "coco_results",
    "evaluate_coco",
    "format_table",
    "to_coco_results",
    "write_results",
]
