"""Reading config files of mmdetection without running them."""

import pytest

from detlite.conversion.mmdetection.config_section import ConfigSection
from detlite.conversion.mmdetection.python_config import UnparsedExpression, read_python_config

TEXT = """
'''A flat file.'''
import os
norm = dict(mean=[123.675, 116.28], std=(1.0, 2), to_rgb=True)
root = 'data/' + 'coco/'
model = dict(type='mmdet.models.MaskRCNN', head={'beta': 1.0 / 4, 'low': -1, 'none': None})
steps = [dict(type='Normalize', **norm), dict()]
device = os.environ['DEVICE']
bounded = float('inf')
"""


def test_literals():
    values = read_python_config(TEXT)
    assert values["root"] == "data/coco/"
    assert values["model"] == {
        "type": "mmdet.models.MaskRCNN",
        "head": {"beta": 0.25, "low": -1, "none": None},
    }
    norm = {"mean": [123.675, 116.28], "std": (1.0, 2), "to_rgb": True}
    assert values["steps"] == [{"type": "Normalize", **norm}, {}]


def test_other_expressions_are_not_executed(tmp_path):
    values = read_python_config(f"a = dict(b=open({str(tmp_path / 'x')!r}, 'w'))\nc = 1 / 0\nd = e")
    assert values["a"]["b"].text.startswith("open(")
    assert values["c"] == UnparsedExpression("1 / 0")
    assert values["d"] == UnparsedExpression("e")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match=r"its config says a\.b = open\(.*not a literal"):
        ConfigSection(values["a"], "a").get("b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("_base_ = ['a.py']", "_base_, other files.*flat"),
        ("a = dict(\n", "not valid Python"),
        ("/a/path.py\na = 1", "not valid Python"),
        ("a = 1\0", "not valid Python"),
        ("a = " + "(" * 5000 + ")" * 5000, "not valid Python"),
        ("a = {}\na['b'] = 1", "other than an assignment in line 2"),
        ("for x in range(3): pass", "other than an assignment"),
        ("del a", "other than an assignment"),
    ],
)
def test_invalid_files(text, message):
    with pytest.raises(ValueError, match=message):
        read_python_config(text)


def test_size_of_values_is_limited():
    doubled = "a = [0]\nb = 2\n" + "a = a + a\nb = b * b\n" * 60
    values = read_python_config(doubled)
    assert values["a"] == UnparsedExpression("a + a")
    assert values["b"] == UnparsedExpression("b * b")
