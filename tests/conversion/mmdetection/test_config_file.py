"""Reading config files of mmdetection without running them, and their sections."""

import pytest

from detlite.conversion.mmdetection.config_file import (
    ConfigSection,
    UnparsedExpression,
    read_python_config,
)

TEXT = """
'''A flat file.'''
import os
norm = dict(mean=[123.675, 116.28], std=(1.0, 2), to_rgb=True)
root = 'data/coco/'
model = dict(type='mmdet.models.MaskRCNN', head={'beta': 0.25, 'low': -1, 'none': None})
steps = [dict(type='Normalize', **norm), dict()]
device = os.environ['DEVICE']
bounded = dict(b=open('ran', 'w'))
"""


def test_literals_are_read_and_nothing_is_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    norm = {"mean": [123.675, 116.28], "std": (1.0, 2), "to_rgb": True}
    values = read_python_config(TEXT)
    assert values == {
        "norm": norm,
        "root": "data/coco/",
        "model": {"type": "mmdet.models.MaskRCNN", "head": {"beta": 0.25, "low": -1, "none": None}},
        "steps": [{"type": "Normalize", **norm}, {}],
        "device": UnparsedExpression("os.environ['DEVICE']"),
        "bounded": {"b": UnparsedExpression("open('ran', 'w')")},
    }
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match=r"its config says a\.b = open\(.*not a literal"):
        ConfigSection(values["bounded"], "a").get("b")


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


NECK = {"type": "mmdet.FPN", "scale": 5, "pool_mode": None, "loss_cls": 3, "std": [7, 8]}


def test_values_of_a_section():
    section = ConfigSection({**NECK, "a": [{}, {}]}, "neck")
    assert (section.number("scale"), section.numbers("std")) == (5, [7, 8])
    assert [item.where for item in section.sections("a")] == ["neck.a[0]", "neck.a[1]"]
    for wrong, message in (("std", "expected one number"), ("type", "expected numbers")):
        with pytest.raises(ValueError, match=message):
            section.number(wrong)
    with pytest.raises(ValueError, match=r"no dict neck\.other"):
        section.section("other")
    value = [0]
    for _ in range(50):
        value = [value, value]
    with pytest.raises(ValueError, match="expected numbers") as error:
        ConfigSection({"a": value}, "section").numbers("a")
    assert len(str(error.value)) < 500  # long values are abbreviated
