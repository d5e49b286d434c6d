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


def test_unknown_settings_are_rejected():
    section = ConfigSection(
        {"type": "mmdet.FPN", "scale": 5, "pool_mode": None, "loss_cls": 3, "std": [7, 8]}, "neck"
    )
    section.check("FPN", scale=(5,), std=((7, 8),))
    for message, kinds, only in (
        (r"neck\.type = 'mmdet\.FPN': only PAFPN", ("PAFPN",), {}),
        (r"neck\.scale = 5: only 4", ("FPN",), {"scale": (4,)}),
        (r"neck\.std = \[7, 8\]: only \(7, 9\)", (), {"std": ((7, 9),)}),
    ):
        with pytest.raises(ValueError, match=message):
            section.check(*kinds, **only)
    with pytest.raises(ValueError, match=r"neck\.size, which is unknown"):
        ConfigSection({"size": 3}, "neck").check()
    assert section.number("scale") == 5
    assert section.numbers("std") == [7, 8]
    for wrong, message in (("std", "expected one number"), ("type", "expected numbers")):
        with pytest.raises(ValueError, match=message):
            section.number(wrong)
    with pytest.raises(ValueError, match=r"no dict neck\.other"):
        section.section("other")
    assert [item.where for item in ConfigSection({"a": [{}, {}]}, "x").sections("a")] == [
        "x.a[0]",
        "x.a[1]",
    ]


def test_long_values_are_abbreviated():
    value = [0]
    for _ in range(50):
        value = [value, value]
    with pytest.raises(ValueError, match="expected numbers") as error:
        ConfigSection({"a": value}, "section").numbers("a")
    assert len(str(error.value)) < 500
