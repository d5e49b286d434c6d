"""Tables and charts about boxes, masks or keypoints of several runs, for a report."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from . import charts
from .analysis.bootstrap import compare, interval
from .analysis.detection_analysis import DetectionAnalysis
from .analysis.error_types import ERROR_TYPES
from .text import ERRORS, METRICS, SIZES, TITLES, calibration_verdict, percent, percent_range

_MAX_CURVES = 24  # categories with a separate chart
_MAX_CONFUSED = 12  # categories of a confusion matrix
_MAX_PAIRS = 8  # pairs of confused categories

TemplateData = dict[str, Any]
Analyses = Mapping[str, DetectionAnalysis]  # by the name of the run; the first is the baseline


def metric_section(
    prefix: str, kind: str, analyses: Analyses, comparable: Sequence[bool]
) -> TemplateData:
    """Return the data of the template for one kind of detections on a dataset.

    Args:
        prefix: of the HTML id.
        kind: a key of TITLES.
        analyses: by the name of the run; runs are compared with the first.
        comparable: for each run, True if its images and labels equal those of the first.
    """
    title = TITLES[kind]
    samples = {run: one.bootstrap.metrics() for run, one in analyses.items()}
    rows: list[TemplateData] = [
        {"name": metric, "meaning": meaning, "cells": _cells(
            [_metric(one, metric) for one in analyses.values()],
            [samples[run][metric] for run in analyses], comparable)}
        for metric, meaning in METRICS.items()
        if all(metric in samples[run] for run in analyses)
    ]  # fmt: skip
    sizes = [row for row in rows if row["name"] in SIZES]
    return {
        "id": f"{prefix}-{kind}",
        "title": title,
        "runs": list(analyses),
        "rows": rows,
        "curves": _curves(title, analyses),
        "sizes": charts.bars(
            f"AP by object size: {title.lower()}",
            [SIZES[row["name"]] for row in sizes],
            {run: [(row["cells"][n]["fraction"], row["cells"][n]["bounds"]) for row in sizes]
             for n, run in enumerate(analyses)},
            "AP (%)",
        ),
        "categories": _categories(analyses, comparable),
        "errors": _errors(title, analyses),
        "confusion": [_confusion(run, one) for run, one in analyses.items()
                      if one.confusion is not None and len(one.names) > 1],
        "calibration": {
            "chart": charts.reliability(
                f"Precision by score: {title.lower()}",
                {run: one.calibration for run, one in analyses.items()},
            ),
            "verdicts": [_calibration(run, one) for run, one in analyses.items()],
        },
    }  # fmt: skip


def _metric(analysis: DetectionAnalysis, name: str) -> float | None:
    """Return a metric; the name of AR ends in the maximum number of detections."""
    metrics = analysis.metrics
    value: float | None = metrics.get(
        name, metrics.get(f"{name}{analysis.precision_recall.max_dets}")
    )
    return value


def _cells(
    values: Sequence[float | None], samples: Sequence[np.ndarray], comparable: Sequence[bool]
) -> list[TemplateData]:
    """Return the value of each run with its interval and its difference from the first run."""
    cells = []
    for index, (value, sample) in enumerate(zip(values, samples, strict=True)):
        bounds = interval(value, sample)
        change = None
        if index and comparable[index]:
            change = compare(values[0], value, samples[0], sample)
        difference = None
        if change is not None:
            style = "" if change.is_noise else "better" if change.value > 0 else "worse"
            difference = {
                "text": percent(change.value, sign="+"),
                "range": percent_range(change.interval, "+"),
                "verdict": style or "within noise",
                "style": style,
            }
        cells.append({
            "text": percent(value), "fraction": value, "bounds": bounds,
            "range": percent_range(bounds), "difference": difference,
        })  # fmt: skip
    return cells


def _curves(title: str, analyses: Analyses) -> list[TemplateData]:
    """Return charts of all categories together, and of the categories with the most objects."""
    first = next(iter(analyses.values()))
    names, objects = first.names, first.objects
    selections: list[tuple[str, Any]] = [("all categories", slice(None))]
    if len(names) > 1:
        frequent = np.sort(np.argsort(-objects, kind="stable")[:_MAX_CURVES])
        selections += [(names[k], k) for k in frequent.tolist()]
    drawn = []
    for name, index in selections:
        if len(analyses) == 1:
            heading = f"{title}: {name}"
            levels = {"50 % IoU": 0.5, "75 % IoU": 0.75, "mean of 50 to 95 %": None}
            curves = {
                label: first.precision_recall.precision_curve(iou, index)
                for label, iou in levels.items()
            }
        else:
            heading = f"{title}: {name}, at 50 % IoU"
            curves = {
                run: one.precision_recall.precision_curve(0.5, index)
                for run, one in analyses.items()
            }
        if known := {label: curve for label, curve in curves.items() if curve is not None}:
            drawn.append({"name": name, "chart": charts.precision_recall(heading, known)})
    return drawn


def _categories(analyses: Analyses, comparable: Sequence[bool]) -> list[TemplateData]:
    """Return the AP of each category in ascending order, categories without objects last."""
    first = next(iter(analyses.values()))
    same = [fits and one.names == first.names
            for fits, one in zip(comparable, analyses.values(), strict=True)]  # fmt: skip
    tables = [one.bootstrap.by_category() for one in analyses.values()]
    rows = []
    for k, name in enumerate(first.names):
        values = [one.metrics["per_category"].get(name) for one in analyses.values()]
        samples = [table[:, one.names.index(name)] if name in one.names else np.full(1, np.nan)
                   for table, one in zip(tables, analyses.values(), strict=True)]  # fmt: skip
        rows.append({
            "name": name, "objects": int(first.objects[k]), "ap": values[0],
            "cells": _cells(values, samples, same),
        })  # fmt: skip
    return sorted(rows, key=lambda row: (row["ap"] is None, row["ap"]))


def _errors(title: str, analyses: Analyses) -> TemplateData | None:
    errors = {run: one.errors for run, one in analyses.items() if one.errors is not None}
    if not errors:
        return None
    rows = []
    for name in ERROR_TYPES:
        meaning, advice = ERRORS[name]
        cells = [{"count": one.counts()[name], "gain": percent(one.gains[name])}
                 for one in errors.values()]  # fmt: skip
        rows.append({"name": name, "meaning": meaning, "advice": advice, "cells": cells})
    gains = next(iter(errors.values())).gains
    worst = max(gains, key=lambda name: gains[name])
    return {
        "rows": rows,
        "worst": worst if gains[worst] > 0 else None,
        "gain": percent(gains[worst]),
        "advice": ERRORS[worst][1],
        "ap": {run: percent(one.ap) for run, one in errors.items()},
        "chart": charts.bars(
            f"Gain from fixing one error type: {title.lower()}",
            ERROR_TYPES,
            {run: [(one.gains[name], None) for name in ERROR_TYPES] for run, one in errors.items()},
            "gain in AP at 50 % IoU (points)",
        ),
    }


def _confusion(run: str, analysis: DetectionAnalysis) -> TemplateData:
    """Return the confusion matrix of the most confused categories, and the most confused pairs."""
    assert analysis.confusion is not None
    matrix, names = analysis.confusion, analysis.names
    count = len(names)
    confused = matrix[:count, :count].copy()
    np.fill_diagonal(confused, 0)
    weight = confused.sum(axis=0) + confused.sum(axis=1)
    # Order categories with the same weight by their number of objects.
    order = np.lexsort((-matrix[:count].sum(axis=1), -weight))
    kept = np.sort(order[:_MAX_CONFUSED])
    indices = np.append(kept, count).tolist()
    labels = [names[k] for k in kept]
    rows = []
    for index, label in zip(indices, [*labels, "no label"], strict=True):
        total = max(int(matrix[index].sum()), 1)
        cells = [
            {"count": int(matrix[index, other]), "fraction": float(matrix[index, other]) / total,
             "correct": index == other}
            for other in indices
        ]  # fmt: skip
        rows.append({"name": label, "cells": cells})
    pairs = []
    for flat in np.argsort(-confused, axis=None, kind="stable")[:_MAX_PAIRS].tolist():
        k, other = divmod(flat, count)
        if confused[k, other]:
            total = matrix[k].sum()
            pairs.append(
                f"{names[k]} is detected as {names[other]}: {confused[k, other]} of {total} "
                f"({percent(confused[k, other] / total, 0)} %)"
            )
    return {
        "run": run,
        "threshold": f"{analysis.threshold.score:.2f}" if analysis.threshold else "0",
        "header": [*labels, "missed"],
        "rows": rows,
        "hidden": count - len(kept),
        "pairs": pairs,
    }


def _calibration(run: str, analysis: DetectionAnalysis) -> TemplateData:
    threshold = None
    if best := analysis.threshold:
        threshold = {name: percent(getattr(best, name)) for name in ("f1", "precision", "recall")}
        threshold["score"] = f"{best.score:.2f}"
    verdict = calibration_verdict(analysis.calibration.error, analysis.calibration.excess)
    return {"run": run, "text": verdict, "threshold": threshold}
