"""Test the SVG charts: special characters in names, and unique ids."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from detlite.apps.report import charts

NAMES = ("_hidden", "5 $ & 6 $", "<b>")
POINTS = np.array([[1, 2, 3], [30, 20, 10]])
CHARTS = {
    "lines": {"xlim": (0, 5)},
    "points": {"marker": "o"},
}


def draw(kind: str, title: str) -> str:
    return charts.chart(title, dict.fromkeys(NAMES, POINTS), **CHARTS[kind])


def texts(svg: str) -> list[str]:
    """Return the texts of a chart."""
    root = ElementTree.fromstring(svg)
    nodes = ["".join(node.itertext()) for node in root.iter() if node.tag.endswith("text")]
    return [" ".join(text.split()) for text in nodes]


@pytest.mark.parametrize("kind", CHARTS)
def test_special_characters(kind):
    svg = draw(kind, 'A "title" & <more>')
    written = texts(svg)
    for name in NAMES:
        assert name in written
    assert 'A "title" & <more>' in written
    root = ElementTree.fromstring(svg)
    assert root.get("aria-label") == 'A "title" & <more>'
    assert root.get("width") is None


@pytest.mark.parametrize("kind", CHARTS)
def test_ids_are_unique_and_deterministic(kind):
    first, second = (re.findall(r'\bid="([^"]+)"', draw(kind, title)) for title in ("a", "b"))
    assert not set(first) & set(second)
    assert draw(kind, "a") == draw(kind, "a")
