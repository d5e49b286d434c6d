"""Test the SVG charts: special characters in names, and unique ids."""

import re
from xml.etree import ElementTree

import numpy as np

from detlite.apps.report.charts import chart

TITLE, NAMES = 'A "title" & <more>', ("_hidden", "5 $ & 6 $", "<b>")
CURVES = dict.fromkeys(NAMES, np.array([[1, 2, 3], [30, 20, 10]]))


def test_special_characters():
    root = ElementTree.fromstring(chart(TITLE, CURVES, marker="o"))
    nodes = ["".join(node.itertext()) for node in root.iter() if node.tag.endswith("text")]
    assert {TITLE, *NAMES} <= {" ".join(text.split()) for text in nodes}
    assert (root.get("aria-label"), root.get("width")) == (TITLE, None)


def test_ids_are_unique_and_deterministic():
    first, second = (re.findall(r'\bid="([^"]+)"', chart(title, CURVES)) for title in ("a", "b"))
    assert not set(first) & set(second)
    assert chart("a", CURVES) == chart("a", CURVES)
