"""Charts as SVG: names of any kind, and nothing that two charts of a page would share."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from detlite.apps.report import charts
from detlite.apps.report.analysis.calibration import Calibration

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
    """What is written in a chart."""
    root = ElementTree.fromstring(svg)
    found = ["".join(node.itertext()) for node in root.iter() if node.tag.endswith("text")]
    return [" ".join(text.split()) for text in found]


@pytest.mark.parametrize("kind", CHARTS)
def test_names_of_any_kind(kind: str) -> None:
    svg = CHARTS[kind]('A "title" & <more>')
    written = texts(svg)
    for name in NAMES:
        assert name in written
    assert 'A "title" & <more>' in written
    root = ElementTree.fromstring(svg)
    assert root.get("aria-label") == 'A "title" & <more>'
    assert root.get("width") is None


@pytest.mark.parametrize("kind", CHARTS)
def test_two_charts_share_no_ids(kind: str) -> None:
    first, second = (re.findall(r'\bid="([^"]+)"', CHARTS[kind](title)) for title in ("a", "b"))
    assert not set(first) & set(second)
    assert CHARTS[kind]("a") == CHARTS[kind]("a")


def test_values_stand_beside_their_bars() -> None:
    svg = charts.bars("t", ["a", "b"], {"x": [(0.123, (0.1, 0.2)), (None, None)]}, "AP (%)")
    assert "12.3" in texts(svg)
    assert "none there" in texts(svg)


def test_sizes_of_objects_and_anchors() -> None:
    written = texts(charts.sizes("t", [3.0, 20.0, 300.0], [[16], [32, 64]]))
    assert {"objects", "anchors"} <= set(written)
