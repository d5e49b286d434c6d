"""Metrics as text."""

from __future__ import annotations

from typing import Any


def format_table(metrics: dict[str, dict[str, Any]]) -> str:
    """Metrics {kind: {name: value}} in percent, one row for each kind; "n/a" stands for None."""
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
    return _align([["", *columns], *rows])


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
