"""Test the SVG charts: special characters in names, and unique ids."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from detlite.apps.report import charts

NAMES = ("_hidden", "5 $ & 6 $", "<b>")
POINTS = np.array([[1, 2, 3], [30, 20, 10]])
CHARTS = {
    "lines": lambda title: charts.lines(title, dict.fromkeys(NAMES, POINTS), "x", "y"),
    "weighted": lambda title: charts.lines(
        title, dict.fromkeys(NAMES, POINTS), "x", "y", weights=dict.fromkeys(NAMES, POINTS[0])
    ),
    "bars": lambda title: charts.bars(
        title, NAMES, {name: [(0.5, (0.4, 0.6)), (None, None), (0.0, None)] for name in NAMES}, "x"
    ),
}


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
