"""Test the SVG charts: special characters in names, and unique ids."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from detlite.apps.report import charts
from detlite.apps.report.analysis.detection_analysis import Calibration

NAMES = ("_hidden", "5 $ & 6 $", "<b>")
CURVE = np.linspace(1, 0, 101)
CHARTS = {
    "precision_recall": lambda title: charts.precision_recall(title, dict.fromkeys(NAMES, CURVE)),
    "bars": lambda title: charts.bars(
        title, NAMES, {name: [(0.5, (0.4, 0.6)), (None, None), (0.0, None)] for name in NAMES}, "x"
    ),
    "reliability": lambda title: charts.reliability(
        title,
        {name: Calibration(np.array([3, 0]), np.array([0.2, np.nan]), np.array([0.1, np.nan]))
         for name in NAMES},
    ),
    "lines": lambda title: charts.lines(title, {name: [(1, 2.0), (2, 1.0)] for name in NAMES}, "x"),
}  # fmt: skip


def texts(svg: str) -> list[str]:
    """Return the texts of a chart."""
    root = ElementTree.fromstring(svg)
    nodes = ["".join(node.itertext()) for node in root.iter() if node.tag.endswith("text")]
    return [" ".join(text.split()) for text in nodes]


@pytest.mark.parametrize("chart", CHARTS)
def test_special_characters(chart):
    svg = CHARTS[chart]('A "title" & <more>')
    written = texts(svg)
    for name in NAMES:
        assert name in written
    assert 'A "title" & <more>' in written
    root = ElementTree.fromstring(svg)
    assert root.get("aria-label") == 'A "title" & <more>'
    assert root.get("width") is None


@pytest.mark.parametrize("chart", CHARTS)
def test_ids_are_unique_and_deterministic(chart):
    first, second = (re.findall(r'\bid="([^"]+)"', CHARTS[chart](title)) for title in ("a", "b"))
    assert not set(first) & set(second)
    assert CHARTS[chart]("a") == CHARTS[chart]("a")


def test_bars_show_their_values():
    svg = charts.bars("t", ["a", "b"], {"x": [(0.123, (0.1, 0.2)), (None, None)]}, "AP (%)")
    assert "12.3" in texts(svg)
    assert "n/a" in texts(svg)


def test_sizes_of_objects_and_anchors():
    written = texts(charts.sizes("t", [3.0, 20.0, 300.0], [[16], [32, 64]]))
    assert {"objects", "anchors"} <= set(written)


def test_one_point_is_no_curve() -> None:
    assert charts.lines("t", {"a": [(1, 2.0)]}, "x") == ""
    assert "b" in texts(charts.lines("t", {"a": [(1, 2.0)], "b": [(1, 2.0), (2, 1.0)]}, "x"))
    assert "a" not in texts(charts.lines("t", {"a": [(1, 2.0)], "b": [(1, 2.0), (2, 1.0)]}, "x"))
