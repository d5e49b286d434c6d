"""Metrics: their means, as text, and beside those that a config expects."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

logger = logging.getLogger(__name__)


def mean_known(values: Iterable[float | None]) -> float | None:
    """The mean of those that are not None; None if there are none."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def format_table(metrics: dict[str, dict[str, Any]]) -> str:
    """Metrics {kind: {name: value}} in percent, one row for each kind; "n/a" stands for None."""
    cells = {
        kind: {name: _percent(value) for name, value in row.items() if not isinstance(value, dict)}
        for kind, row in metrics.items()
    }
    columns = list(dict.fromkeys(name for row in cells.values() for name in row))
    rows = [["", *columns]]
    rows += [[kind, *(row.get(name, "") for name in columns)] for kind, row in cells.items()]
    first = max(len(row[0]) for row in rows)
    others = max((len(cell) for row in rows for cell in row[1:]), default=0)
    return "\n".join(
        "  ".join([row[0].ljust(first), *(cell.rjust(others) for cell in row[1:])]) for row in rows
    )


def format_losses(losses: dict[str, float | None]) -> str:
    """Losses {"total": 1.5, "box": 0.5, ...} in a line; "n/a" stands for None."""
    cells = {name: "n/a" if value is None else f"{value:.3f}" for name, value in losses.items()}
    total = cells.pop("total")
    return f"{total} ({', '.join(f'{name} {cell}' for name, cell in cells.items())})"


def _percent(value: float | None) -> str:
    return "n/a" if value is None else f"{100 * value:.1f}"


def check_expected(
    metrics: dict[str, dict[str, Any]], expected: Sequence[Sequence[Any]], sigmas: float
) -> None:
    """Logs PASS for each of TEST.EXPECTED_RESULTS, or the error FAIL, also if it was not measured.

    Args:
        metrics: `{"bbox": {"AP": 0..1, ...}, ...}` of one data set.
        expected: rows (kind, metric, (mean, standard deviation)), such as
            ("bbox", "AP", (0.377, 0.002)).
        sigmas: how many standard deviations a metric may be off.
    """
    for kind, name, (mean, deviation) in expected:
        value = metrics.get(kind, {}).get(name)
        low, high = mean - sigmas * deviation, mean + sigmas * deviation
        fine = value is not None and low <= value <= high
        logger.log(
            logging.INFO if fine else logging.ERROR,
            "%s: %s %s is %s, expected %.4f to %.4f",
            "PASS" if fine else "FAIL", kind, name,
            "not measured" if value is None else f"{value:.4f}", low, high,
        )  # fmt: skip
