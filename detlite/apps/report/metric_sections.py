"""Tables and charts about boxes, masks or keypoints of several runs, for a report."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from detlite.evaluation.engine import RECALL_THRESHOLDS

from . import charts
from .analysis.bootstrap import compare, interval
from .analysis.detection_analysis import DetectionAnalysis
from .runs import TITLES

_METRICS = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR")
_MAX_CONFUSED = 12  # categories of a confusion matrix

TemplateData = dict[str, Any]
Analyses = Mapping[str, DetectionAnalysis]  # by the name of the run; the first is the baseline


def metric_section(
    prefix: str, kind: str, analyses: Analyses, comparable: Sequence[bool]
) -> TemplateData:
    """Return the template data for one kind of detections on a dataset.

    Args:
        prefix: prefix of the HTML id.
        kind: a key of TITLES.
        analyses: analysis of each run, by name.
        comparable: for each run, True if it has the same images and labels as the first run.
    """
    title, results = TITLES[kind], list(analyses.values())
    samples = [result.bootstrap.metrics() for result in results]
    rows: list[TemplateData] = []
    for metric in _METRICS:
        if all(metric in sampled for sampled in samples):
            # The name of AR ends in the maximum number of detections.
            names = [f"{metric}{r.precision_recall.measures.max_dets}" for r in results]
            values = [
                r.metrics.get(metric, r.metrics.get(name))
                for r, name in zip(results, names, strict=True)
            ]
            cells = _cells(values, [sampled[metric] for sampled in samples], comparable)
            rows.append({"name": metric, "cells": cells})
    return {
        "id": f"{prefix}-{kind}",
        "title": title,
        "runs": analyses,
        "rows": rows,
        "curves": _curves(title, analyses),
        "categories": _categories(analyses, comparable),
        "errors": {run: result.errors for run, result in analyses.items() if result.errors},
        "confusion": [_confusion(run, result) for run, result in analyses.items()
                      if result.confusion is not None and len(result.names) > 1],
        "calibration": _calibration(title, analyses),
    }  # fmt: skip


def _cells(
    values: Sequence[float | None], samples: Sequence[np.ndarray], comparable: Sequence[bool]
) -> list[TemplateData]:
    """Return each run's value of a metric, with its interval and its difference from the first."""
    cells = []
    for index, (value, sample) in enumerate(zip(values, samples, strict=True)):
        change, style = None, ""
        if index and comparable[index]:
            change = compare(values[0], value, samples[0], sample)
        if change is not None and not change.is_noise:
            style = "better" if change.value > 0 else "worse"
        bounds = interval(value, sample)
        cells.append({"value": value, "bounds": bounds, "change": change, "style": style})
    return cells


def _curves(title: str, analyses: Analyses) -> str:
    """Return a chart of precision and recall: of each run, or of one run at several IoUs."""
    suffix = ", at 50 % IoU"
    plotted: list[tuple[str, DetectionAnalysis, float | None]]
    plotted = [(run, result, 0.5) for run, result in analyses.items()]
    if len(analyses) == 1:
        (result,), suffix = analyses.values(), ""
        ious = {"50 % IoU": 0.5, "75 % IoU": 0.75, "mean of 50 to 95 %": None}
        plotted = [(label, result, iou) for label, iou in ious.items()]
    curves = {
        label: (100 * RECALL_THRESHOLDS, 100 * curve)
        for label, result, iou in plotted
        if (curve := result.precision_recall.precision_curve(iou)) is not None
    }
    return charts.chart(
        f"{title}{suffix}", curves, "recall: detected objects (%)",
        "precision: correct detections (%)", xlim=(0, 100), ylim=(0, 103),
    ) if curves else ""  # fmt: skip


def _categories(analyses: Analyses, comparable: Sequence[bool]) -> list[TemplateData]:
    """Return the AP of each category in ascending order, categories without objects last."""
    first, *_ = results = list(analyses.values())
    same = [ok and r.names == first.names for ok, r in zip(comparable, results, strict=True)]
    samples = [dict(zip(r.names, r.bootstrap.by_category().T, strict=True)) for r in results]
    rows, unknown = [], np.full(1, np.nan)
    for name, objects in zip(first.names, first.objects.tolist(), strict=True):
        values = [result.metrics["per_category"].get(name) for result in results]
        cells = _cells(values, [sampled.get(name, unknown) for sampled in samples], same)
        rows.append({"name": name, "objects": objects, "ap": values[0], "cells": cells})
    return sorted(rows, key=lambda row: (row["ap"] is None, row["ap"]))


def _calibration(title: str, analyses: Analyses) -> str:
    """Return a chart of the precision by score, with the diagonal of perfect calibration."""
    curves, weights = {}, {}
    for run, result in analyses.items():
        bins, filled = result.calibration, result.calibration.counts > 0
        curves[run] = 100 * bins.scores[filled], 100 * bins.precision[filled]
        weights[run] = bins.counts[filled]
    return charts.chart(
        f"Precision by score: {title.lower()}", curves, "mean score (%)", "precision (%)", weights,
        xlim=(0, 103), ylim=(-3, 103),
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
    # Order categories that are confused equally often by their number of objects.
    order = np.lexsort((-totals[:count], -weight))
    kept = np.sort(order[:_MAX_CONFUSED])
    indices, labels = np.append(kept, count), [names[k] for k in kept]
    counts = matrix[np.ix_(indices, indices)].tolist()
    return {
        "run": run,
        "threshold": f"{analysis.threshold.score:.2f}" if analysis.threshold else "0",
        "header": [*labels, "missed"],
        "rows": list(zip([*labels, "no label"], counts, totals[indices].tolist(), strict=True)),
        "hidden": count - len(kept),
    }  # fmt: skip
