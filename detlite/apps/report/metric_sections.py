"""What a report shows of boxes, masks or keypoints: tables and charts of several runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from . import charts
from .analysis.bootstrap import MetricDifference, compare, interval
from .analysis.detection_analysis import DetectionAnalysis
from .analysis.error_types import ERROR_TYPES
from .text import METRICS, MISTAKES, SIZES, TITLES, calibration_verdict, percent

_MOST_CURVES = 24  # categories with a chart of their own
_MOST_CONFUSED = 12  # categories of a confusion matrix
_MOST_PAIRS = 8  # of categories that are mixed up

Part = dict[str, Any]


def describe(
    prefix: str, kind: str, found: Mapping[str, DetectionAnalysis], same: Sequence[bool]
) -> Part:
    """What the template shows of one kind on a data set.

    Args:
        prefix: of the part's id in the page.
        found: by the names of the runs, the first being what others are compared with.
        same: which of them were measured on the pictures and labels of the first.
    """
    title = TITLES[kind]
    drawn = {run: one.bootstrap.metrics() for run, one in found.items()}
    rows: list[Part] = [
        {"name": metric, "meaning": meaning, "cells": _cells(
            [_metric(one, metric) for one in found.values()],
            [drawn[run][metric] for run in found], same)}
        for metric, meaning in METRICS.items()
        if all(metric in drawn[run] for run in found)
    ]  # fmt: skip
    sizes = [row for row in rows if row["name"] in SIZES]
    return {
        "id": f"{prefix}-{kind}",
        "title": title,
        "runs": list(found),
        "rows": rows,
        "curves": _curves(title, found),
        "sizes": charts.bars(
            f"AP by size of the object: {title.lower()}",
            [SIZES[row["name"]] for row in sizes],
            {run: [(row["cells"][n]["fraction"], row["cells"][n]["bounds"]) for row in sizes]
             for n, run in enumerate(found)},
            "AP (%)",
        ),
        "categories": _categories(found, same),
        "errors": _errors(title, found),
        "confusion": [_confusion(run, one) for run, one in found.items()
                      if one.confusion is not None and len(one.names) > 1],
        "calibration": {
            "chart": charts.reliability(
                f"Precision by score: {title.lower()}",
                {run: one.calibration for run, one in found.items()},
            ),
            "verdicts": [_calibration(run, one) for run, one in found.items()],
        },
    }  # fmt: skip


def _metric(one: DetectionAnalysis, name: str) -> float | None:
    """Average recall has the number of detections in its name, where there are several."""
    value: float | None = one.metrics.get(
        name, one.metrics.get(f"{name}{one.precision_recall.max_dets}")
    )
    return value


def _cells(
    values: Sequence[float | None], draws: Sequence[np.ndarray], same: Sequence[bool]
) -> list[Part]:
    """A value of each run with its interval and its difference from the first run's."""
    cells = []
    for number, (value, drawn) in enumerate(zip(values, draws, strict=True)):
        bounds = interval(value, drawn)
        against = None
        if number and same[number]:
            against = compare(values[0], value, draws[0], drawn)
        cells.append({
            "text": percent(value), "fraction": value, "bounds": bounds,
            "between": _between(bounds), "difference": _difference(against),
        })  # fmt: skip
    return cells


def _between(bounds: tuple[float, float] | None, sign: str = "") -> str:
    return "" if bounds is None else " to ".join(f"{100 * bound:{sign}.1f}" for bound in bounds)


def _difference(found: MetricDifference | None) -> Part | None:
    if found is None:
        return None
    verdict = "better" if found.value > 0 else "worse"
    return {
        "text": f"{100 * found.value:+.1f}",
        "between": _between(found.interval, "+"),
        "verdict": "within noise" if found.is_noise else verdict,
        "style": "" if found.is_noise else verdict,
    }


def _curves(title: str, found: Mapping[str, DetectionAnalysis]) -> list[Part]:
    """Precision over recall of all categories, and of those with the most objects."""
    first = next(iter(found.values()))

    def chart(category: str, places: Any) -> Part | None:
        if len(found) == 1:
            levels = {"50 % overlap": 0.5, "75 % overlap": 0.75, "mean of 50 to 95 %": None}
            curves = {
                name: first.precision_recall.precision_curve(at, places)
                for name, at in levels.items()
            }
        else:
            curves = {
                run: one.precision_recall.precision_curve(0.5, places) for run, one in found.items()
            }
        known = {name: curve for name, curve in curves.items() if curve is not None}
        at = "" if len(found) == 1 else ", at 50 % overlap"
        heading = f"{title}: {category}{at}"
        return (
            {"name": category, "chart": charts.precision_recall(heading, known)} if known else None
        )

    drawn = [chart("all categories", slice(None))]
    if len(first.names) > 1:
        common = np.sort(np.argsort(-first.objects, kind="stable")[:_MOST_CURVES])
        drawn += [chart(first.names[k], k) for k in common.tolist()]
    return [one for one in drawn if one is not None]


def _categories(found: Mapping[str, DetectionAnalysis], same: Sequence[bool]) -> list[Part]:
    """AP of each category, the weakest first, those without objects last."""
    first = next(iter(found.values()))
    alike = [fits and one.names == first.names
             for fits, one in zip(same, found.values(), strict=True)]  # fmt: skip
    drawn = [one.bootstrap.by_category() for one in found.values()]
    rows = []
    for k, name in enumerate(first.names):
        values = [one.metrics["per_category"].get(name) for one in found.values()]
        draws = [table[:, one.names.index(name)] if name in one.names else np.full(1, np.nan)
                 for table, one in zip(drawn, found.values(), strict=True)]  # fmt: skip
        rows.append({
            "name": name, "objects": int(first.objects[k]), "ap": values[0],
            "cells": _cells(values, draws, alike),
        })  # fmt: skip
    return sorted(rows, key=lambda row: (row["ap"] is None, row["ap"]))


def _errors(title: str, found: Mapping[str, DetectionAnalysis]) -> Part | None:
    errors = {run: one.errors for run, one in found.items() if one.errors is not None}
    if not errors:
        return None
    rows = []
    for kind in ERROR_TYPES:
        meaning, remedy = MISTAKES[kind]
        cells = [{"count": one.counts()[kind], "gain": percent(one.gains[kind])}
                 for one in errors.values()]  # fmt: skip
        rows.append({"name": kind, "meaning": meaning, "remedy": remedy, "cells": cells})
    gains = next(iter(errors.values())).gains
    worst = max(gains, key=lambda kind: gains[kind])
    return {
        "rows": rows,
        "worst": worst if gains[worst] > 0 else None,
        "gain": percent(gains[worst]),
        "remedy": MISTAKES[worst][1],
        "ap": {run: percent(one.ap) for run, one in errors.items()},
        "chart": charts.bars(
            f"What mending one kind would bring: {title.lower()}",
            ERROR_TYPES,
            {run: [(one.gains[kind], None) for kind in ERROR_TYPES] for run, one in errors.items()},
            "gain in AP at 50 % overlap (points)",
        ),
    }


def _confusion(run: str, one: DetectionAnalysis) -> Part:
    """The matrix of the categories with the most mistakes, and the most frequent mistakes."""
    assert one.confusion is not None
    matrix = one.confusion
    count = len(one.names)
    within = matrix[:count, :count].copy()
    np.fill_diagonal(within, 0)
    weight = within.sum(axis=0) + within.sum(axis=1)
    # Of categories that are never mixed up the most frequent ones.
    order = np.lexsort((-matrix[:count].sum(axis=1), -weight))
    kept = np.sort(order[:_MOST_CONFUSED])
    places = np.append(kept, count)
    labels = [*(one.names[k] for k in kept), ""]
    rows = []
    for place, label in zip(places.tolist(), labels, strict=True):
        total = max(int(matrix[place].sum()), 1)
        cells = [
            {"count": int(matrix[place, other]), "share": float(matrix[place, other]) / total,
             "right": place == other}
            for other in places.tolist()
        ]  # fmt: skip
        rows.append({"name": label or "nothing is there", "cells": cells})
    pairs = []
    for flat in np.argsort(-within, axis=None, kind="stable")[:_MOST_PAIRS].tolist():
        k, other = divmod(flat, count)
        if within[k, other]:
            share = percent(within[k, other] / matrix[k].sum(), 0)
            pairs.append(
                f"{one.names[k]} is taken for {one.names[other]}: {within[k, other]} of "
                f"{matrix[k].sum()} ({share} %)"
            )
    return {
        "run": run,
        "threshold": f"{one.threshold.score:.2f}" if one.threshold else "0",
        "header": [*labels[:-1], "missed"],
        "rows": rows,
        "left_out": count - len(kept),
        "pairs": pairs,
    }


def _calibration(run: str, one: DetectionAnalysis) -> Part:
    threshold = None
    if one.threshold:
        threshold = {"score": f"{one.threshold.score:.2f}", "f1": percent(one.threshold.f1),
                     "precision": percent(one.threshold.precision),
                     "recall": percent(one.threshold.recall)}  # fmt: skip
    verdict = calibration_verdict(one.calibration.error, one.calibration.excess)
    return {"run": run, "text": verdict, "threshold": threshold}
