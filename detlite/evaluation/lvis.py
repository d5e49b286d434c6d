"""LVIS's average precision, by the `lvis` package (lvisdataset.org).

LVIS is a federated data set: of each picture only some categories are annotated. What is found of
the others does not count, nor do false alarms of categories that are not annotated exhaustively.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
from pycocotools.coco import COCO

from ..config import ConfigError
from ..data.errors import DataError
from .results import check_results

MAX_DETS = 300  # LVIS's own: of a picture, over all categories

# What tells which categories are annotated, and how often they occur: a list and its field.
_FIELDS = (
    ("images", "neg_category_ids"),
    ("images", "not_exhaustive_category_ids"),
    ("categories", "frequency"),
)


def lvis_package() -> ModuleType:
    """The package `lvis`; a ConfigError if it is not installed."""
    try:
        import lvis
    except ImportError as error:
        raise ConfigError(
            f"a data set of type lvis is measured by the package lvis, which cannot be imported "
            f"({error}): pip install lvis, or give the entry type coco"
        ) from error
    return lvis


def evaluate_lvis(
    coco_gt: COCO, results: Sequence[dict[str, Any]], iou_types: Sequence[str] = ("bbox", "segm")
) -> dict[str, dict[str, Any]]:
    """Scores `results` as LVIS does, the best MAX_DETS of each picture.

    Args:
        coco_gt: the ground truth, with LVIS's neg_category_ids and not_exhaustive_category_ids of
            each image and the frequency ("r", "c" or "f") of each category. It is not changed.
        results: detections in COCO's results form: image_id, category_id, score, and for each of
            `iou_types` bbox (xywh) or segmentation (compressed RLE). May be empty.
        iou_types: which of "bbox" and "segm".

    Returns:
        {"bbox": {"AP", "AP50", "AP75", "APs", "APm", "APl", "APr", "APc", "APf" (rare, common and
        frequent categories), "AR@300", "ARs@300", ..., "per_category": {name: AP}}, ...},
        fractions of 1. None where there is nothing to find.

    Raises:
        ConfigError: the package `lvis` is not installed.
        DataError: the ground truth lacks one of LVIS's fields, or a result a field that is scored,
            or names an unknown image or category.
    """
    lvis = lvis_package()
    for key, field in _FIELDS:
        for row in coco_gt.dataset[key]:
            if field not in row:
                raise DataError(
                    f"ground truth: {key}, id {row['id']}: no {field!r}, which LVIS's evaluation "
                    "needs; if this is not an LVIS file, give its entry type coco"
                )
    scored = {kind: check_results(results, coco_gt, kind) for kind in iou_types}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "truth.json"  # the package reads files only
        file.write_text(json.dumps(coco_gt.dataset))
        # Matching writes into the ground truth, so that each type needs its own.
        return {kind: _evaluate(lvis, str(file), rows, kind) for kind, rows in scored.items()}


def _evaluate(
    lvis: ModuleType, file: str, rows: list[dict[str, Any]], iou_type: str
) -> dict[str, Any]:
    truth = lvis.LVIS(file)
    if not rows:  # which the package fails on; a detection that covers nothing scores the same
        first = {"image_id": truth.get_img_ids()[0], "category_id": truth.get_cat_ids()[0]}
        rows = [{**first, "score": 0.0, "bbox": [0.0, 0.0, 0.0, 0.0]}]
    evaluator = lvis.LVISEval(truth, lvis.LVISResults(truth, rows, MAX_DETS), iou_type)
    # lvis 0.5.3 uses an alias that numpy 1.24 took away.
    with mock.patch.object(np, "float", float, create=True):
        evaluator.run()
    metrics: dict[str, Any] = {
        name: _known(value) for name, value in evaluator.get_results().items()
    }
    precision = evaluator.eval["precision"]  # (T, R, K, A): IoU, recall, category, area
    metrics["per_category"] = {
        row["name"]: _known(precision[:, :, k, 0].mean())
        for k, row in enumerate(truth.load_cats(evaluator.params.cat_ids))
    }
    return metrics


def _known(value: float) -> float | None:
    """-1 stands for nothing to find."""
    return float(value) if value > -1 else None
