"""Metrics as text."""

from __future__ import annotations

from typing import Any


def format_table(metrics: dict[str, dict[str, Any]], per_category: bool = False) -> str:
    """Lays out what evaluations return, in percent, one row for each kind of metric.

    With `per_category`, a second table has one row for each category. "n/a" stands for None.
    """
    columns = list(
        dict.fromkeys(
            name
            for row in metrics.values()
            for name, value in row.items()
            if not isinstance(value, dict)
        )
    )
    rows = [
        [iou_type, *(_percent(row, name) for name in columns)] for iou_type, row in metrics.items()
    ]
    table = _align([["", *columns], *rows])
    if not per_category:
        return table
    categories = dict.fromkeys(name for row in metrics.values() for name in row["per_category"])
    rows = [
        [category, *(_percent(row["per_category"], category) for row in metrics.values())]
        for category in categories
    ]
    return table + "\n\n" + _align([["AP", *metrics], *rows])


def _percent(row: dict[str, Any], name: str) -> str:
    if name not in row:
        return ""
    return "n/a" if row[name] is None else f"{100 * row[name]:.1f}"


def _align(rows: list[list[str]]) -> str:
    first = max(len(row[0]) for row in rows)
    others = max((len(cell) for row in rows for cell in row[1:]), default=0)
    return "\n".join(
        "  ".join([row[0].ljust(first), *(cell.rjust(others) for cell in row[1:])]) for row in rows
    )
