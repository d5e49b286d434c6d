"""Metrics as text."""

from __future__ import annotations

from detlite.evaluation import format_table

METRICS = {
    "bbox": {"AP": 0.5, "AP50": 0.75, "APs": None, "per_category": {"cat": 1.0, "dog": None}},
    "segm": {"AP": 1.0, "AP50": 1.0, "APs": None, "per_category": {"cat": 0.25, "dog": None}},
}


def test_rows_and_columns() -> None:
    assert format_table(METRICS).splitlines() == [
        "         AP   AP50    APs",
        "bbox   50.0   75.0    n/a",
        "segm  100.0  100.0    n/a",
    ]


def test_kinds_with_other_columns() -> None:
    metrics = {"bbox": {"AP": 0.5, "AR1": 0.25}, "keypoints": {"AP": None, "AR": 1.0}}
    assert format_table(metrics).splitlines() == [
        "              AP    AR1     AR",
        "bbox        50.0   25.0       ",
        "keypoints    n/a         100.0",
    ]


def test_numbers_by_category_are_no_columns() -> None:
    metrics = {"cityscapes": {"AP": 0.5, "per_category": {}, "per_category_AP50": {"car": 1.0}}}
    assert format_table(metrics).splitlines() == ["              AP", "cityscapes  50.0"]
