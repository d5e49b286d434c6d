"""Config files of mmdetection, read without running them."""

from __future__ import annotations

import pytest

from detlite.conversion.mmdetection.python_config import ConfigSection, UnparsedExpression, read_python_config

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


def test_literals_are_read():
    values = read_python_config(TEXT)
    assert values["root"] == "data/coco/"
    assert values["model"] == {
        "type": "mmdet.models.MaskRCNN",
        "head": {"beta": 0.25, "low": -1, "none": None},
    }
    norm = {"mean": [123.675, 116.28], "std": (1.0, 2), "to_rgb": True}
    assert values["steps"] == [{"type": "Normalize", **norm}, {}]


def test_all_else_is_kept_as_text_and_nothing_runs(tmp_path):
    values = read_python_config(f"a = dict(b=open({str(tmp_path / 'x')!r}, 'w'))\nc = 1 / 0\nd = e")
    assert values["a"]["b"].text.startswith("open(")
    assert values["c"] == UnparsedExpression("1 / 0")
    assert values["d"] == UnparsedExpression("e")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match=r"its config says a\.b = open\(.*no literal"):
        ConfigSection(values["a"], "a").get("b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("_base_ = ['a.py']", "_base_, files that it builds on.*flat"),
        ("a = dict(\n", "no Python"),
        ("/a/path.py\na = 1", "no Python"),
        ("a = 1\0", "no Python"),
        ("a = " + "(" * 5000 + ")" * 5000, "no Python"),
        ("a = {}\na['b'] = 1", "more than assign.*line 2"),
        ("for x in range(3): pass", "more than assign"),
        ("del a", "more than assign"),
    ],
)
def test_what_is_no_flat_config_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        read_python_config(text)


def test_a_part_says_what_it_does_not_know():
    part = ConfigSection(
        {"type": "mmdet.FPN", "num": 5, "mode": None, "loss_cls": 3, "size": [7, 8]}, "neck"
    )
    part.check(("FPN",), "num size", mode=("nearest",))
    for message, arguments in {
        r"neck\.type = 'mmdet\.FPN': only PAFPN": {"kinds": ("PAFPN",)},
        r"neck\.size, which is not understood": {"kinds": ("FPN",), "read": "num mode"},
        r"neck\.num = 5: only 4": {"kinds": ("FPN",), "read": "mode size", "num": (4,)},
    }.items():
        with pytest.raises(ValueError, match=message):
            part.check(**arguments)
    assert part.number("num") == 5
    assert part.numbers("size") == [7, 8]
    for wrong, message in (("size", "where one number stands"), ("type", "where numbers stand")):
        with pytest.raises(ValueError, match=message):
            part.number(wrong)
    with pytest.raises(ValueError, match=r"no dict neck\.other"):
        part.part("other")
    assert [item.where for item in ConfigSection({"a": [{}, {}]}, "x").parts("a")] == ["x.a[0]", "x.a[1]"]


def test_a_few_lines_do_not_take_all_memory():
    doubled = "a = [0]\nb = 2\n" + "a = a + a\nb = b * b\n" * 60
    values = read_python_config(doubled)
    assert values["a"] == UnparsedExpression("a + a")
    assert values["b"] == UnparsedExpression("b * b")


def test_messages_stay_short():
    value = [0]
    for _ in range(50):
        value = [value, value]
    with pytest.raises(ValueError, match="where numbers stand") as error:
        ConfigSection({"a": value}, "part").numbers("a")
    assert len(str(error.value)) < 500
