"""Average, format and check metrics, and check their settings."""

import logging
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

logger = logging.getLogger(__name__)

# {kind: {metric: value}}, for example {"bbox": {"AP": 0.4}}.
Metrics = dict[str, dict[str, Any]]


class MetricValue(float):
    """A metric that is not a fraction, or that is better when it is lower.

    Evaluators and hooks return it instead of a number, for example as
    {"counts": {"error": MetricValue(0.53, lower_is_better=True)}}.
    """

    def __new__(
        cls, value: float, lower_is_better: bool = False, is_fraction: bool = False
    ) -> "MetricValue":
        metric = super().__new__(cls, value)
        metric.lower_is_better, metric.is_fraction = lower_is_better, is_fraction
        return metric

    lower_is_better: bool
    is_fraction: bool


def format_metric(value: float | None) -> str:
    """Format a metric: fractions in percent, None as "n/a"."""
    if value is None:
        return "n/a"
    return f"{100 * value:.1f}" if getattr(value, "is_fraction", True) else f"{value:.4g}"


def mean_or_none(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None, or None if there are none."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def iou_problem(iou_thresholds: Sequence[float]) -> str:
    """Return what is wrong with the IoU thresholds of `evaluate_coco`, or ""."""
    ious = [0, *iou_thresholds]
    if any(low >= high for low, high in pairwise([*ious, 1 + 1e-9])):
        return f"IoU thresholds must increase from above 0 to at most 1, got {[*iou_thresholds]}"
    return ""


def format_table(metrics: Metrics) -> str:
    """Format metrics by `format_metric`, one row per kind."""
    cells = {
        kind: {
            name: format_metric(value) for name, value in row.items() if not isinstance(value, dict)
        }
        for kind, row in metrics.items()
    }
    columns = list(dict.fromkeys(name for row in cells.values() for name in row))
    rows = [["", *columns]]
    rows += [[kind, *(row.get(name, "") for name in columns)] for kind, row in cells.items()]
    first = max(len(row[0]) for row in rows)
    width = max((len(cell) for row in rows for cell in row[1:]), default=0)
    return "\n".join(
        "  ".join([row[0].ljust(first), *(cell.rjust(width) for cell in row[1:])]) for row in rows
    )


def format_losses(losses: dict[str, float | None]) -> str:
    """Format losses {"total": 1.5, "box": 0.5, ...} in one line; None is shown as "n/a"."""
    cells = {name: "n/a" if value is None else f"{value:.3f}" for name, value in losses.items()}
    total = cells.pop("total")
    return f"{total} ({', '.join(f'{name} {cell}' for name, cell in cells.items())})"


def check_expected(metrics: Metrics, expected: Sequence[Sequence[Any]], sigmas: float) -> None:
    """Log PASS or the error FAIL for each of TEST.EXPECTED_RESULTS; a missing metric fails.

    `expected` has rows (kind, metric, (mean, standard deviation)), such as
    ("bbox", "AP", (0.377, 0.002)), and `sigmas` is the tolerance in standard deviations.
    """
    for kind, name, (mean, deviation) in expected:
        value = metrics.get(kind, {}).get(name)
        low, high = mean - sigmas * deviation, mean + sigmas * deviation
        passed = value is not None and low <= value <= high
        logger.log(
            logging.INFO if passed else logging.ERROR,
            "%s: %s %s is %s, expected %.4f to %.4f",
            "PASS" if passed else "FAIL", kind, name,
            "not measured" if value is None else f"{value:.4f}", low, high,
        )  # fmt: skip
