"""Tables and charts about boxes, masks or keypoints of several runs, for a report."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from detlite.evaluation.engine import RECALL_THRESHOLDS

from . import charts
from .analysis.bootstrap import compare, interval
from .analysis.detection_analysis import DetectionAnalysis
from .runs import TITLES

_IOUS = (("50 % IoU", 0.5), ("75 % IoU", 0.75), ("mean of 50 to 95 %", None))
_MAX_CONFUSED = 12  # categories of a confusion matrix

TemplateData = dict[str, Any]
Analyses = Mapping[str, DetectionAnalysis]  # by the name of the run; the first is the baseline


def metric_section(prefix: str, kind: str, analyses: Analyses) -> TemplateData:
    """Return the template data for one kind of detections on a dataset.

    Args:
        prefix: prefix of the HTML id.
        kind: a key of TITLES.
        analyses: analysis of each run, by name.
    """
    title, results = TITLES[kind], list(analyses.values())
    samples = [result.bootstrap.metrics() for result in results]
    rows: list[TemplateData] = []
    for metric in samples[0]:  # AR is that of the maximum number of detections
        values = [r.metrics.get(metric, r.precision_recall.ar()) for r in results]
        cells = _cells(values, [sampled[metric] for sampled in samples])
        rows.append({"name": metric, "cells": cells})
    return {
        "id": f"{prefix}-{kind}",
        "title": title,
        "runs": analyses,
        "rows": rows,
        "curves": _curves(title, analyses),
        "categories": _categories(analyses),
        "errors": {run: result.errors for run, result in analyses.items() if result.errors},
        "confusion": [_confusion(run, result) for run, result in analyses.items()
                      if result.confusion is not None and len(result.names) > 1],
        "calibration": _calibration(title, analyses),
    }  # fmt: skip


def _cells(values: Sequence[float | None], samples: Sequence[np.ndarray]) -> list[TemplateData]:
    """Return each run's value of a metric, with its interval and its difference from the first."""
    cells = []
    for index, (value, sample) in enumerate(zip(values, samples, strict=True)):
        change, style = compare(values[0], value, samples[0], sample) if index else None, ""
        if change is not None and not change.is_noise:
            style = "better" if change.value > 0 else "worse"
        bounds = interval(value, sample)
        cells.append({"value": value, "bounds": bounds, "change": change, "style": style})
    return cells


def _curves(title: str, analyses: Analyses) -> str:
    """Return a chart of precision and recall: of each run, or of one run at several IoUs."""
    several, curves = len(analyses) > 1, {}
    for run, result in analyses.items():
        for label, iou in [("50 % IoU", 0.5)] if several else _IOUS:
            curve = result.precision_recall.precision_curve(iou)
            if curve is not None:
                name = f"{run}, {label}" if several else label
                curves[name] = 100 * RECALL_THRESHOLDS, 100 * curve
    return charts.chart(
        title, curves, xlabel="recall: detected objects (%)",
        ylabel="precision: correct detections (%)", xlim=(0, 100), ylim=(0, 103),
    ) if curves else ""  # fmt: skip


def _categories(analyses: Analyses) -> list[TemplateData]:
    """Return the AP of each category in ascending order, categories without objects last."""
    first, *_ = results = list(analyses.values())
    samples = [result.bootstrap.by_category() for result in results]
    rows = []
    for k, (name, objects) in enumerate(zip(first.names, first.objects.tolist(), strict=True)):
        values = [result.metrics["per_category"].get(name) for result in results]
        cells = _cells(values, [sampled[:, k] for sampled in samples])
        rows.append({"name": name, "objects": objects, "ap": values[0], "cells": cells})
    return sorted(rows, key=lambda row: (row["ap"] is None, row["ap"]))


def _calibration(title: str, analyses: Analyses) -> str:
    """Return a chart of the precision by score, with the diagonal of perfect calibration."""
    curves: dict[str, Any] = {}
    for run, result in analyses.items():
        bins, filled = result.calibration, result.calibration.counts > 0
        curves[run] = 100 * bins.scores[filled], 100 * bins.precision[filled]
    return charts.chart(
        f"Precision by score: {title.lower()}", curves | {"perfect": ([0, 100], [0, 100])},
        marker="o", xlabel="mean score (%)", ylabel="precision (%)", xlim=(0, 103), ylim=(-3, 103),
    )  # fmt: skip


def _confusion(run: str, analysis: DetectionAnalysis) -> TemplateData:
    """Return the confusion matrix of the most confused categories."""
    assert analysis.confusion is not None
    matrix, names = analysis.confusion, analysis.names
    count = len(names)
    confused = matrix[:count, :count].copy()
    np.fill_diagonal(confused, 0)
    weight = confused.sum(axis=0) + confused.sum(axis=1)
    totals = matrix.sum(axis=1)
    kept = np.sort(np.argsort(-weight, kind="stable")[:_MAX_CONFUSED])
    indices, labels = np.append(kept, count), [names[k] for k in kept]
    counts = matrix[np.ix_(indices, indices)].tolist()
    return {
        "run": run,
        "threshold": f"{analysis.threshold.score:.2f}" if analysis.threshold else "0",
        "header": [*labels, "missed"],
        "rows": list(zip([*labels, "no label"], counts, totals[indices].tolist(), strict=True)),
        "hidden": count - len(kept),
    }  # fmt: skip
