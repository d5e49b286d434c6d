"""Evaluation: detections as COCO results, and COCO's average precision of them."""

from .coco import evaluate_coco
from .results import (
    categories_of,
    coco_results,
    read_results,
    to_coco_results,
    write_results,
)
from .table import format_table

__all__ = [
    "categories_of",
    "coco_results",
    "evaluate_coco",
    "format_table",
    "read_results",
    "to_coco_results",
    "write_results",
]
