"""Sections of configs of mmdetection."""

import pytest

from detlite.conversion.mmdetection.config_section import ConfigSection


def test_unknown_settings_are_rejected():
    section = ConfigSection(
        {"type": "mmdet.FPN", "num": 5, "mode": None, "loss_cls": 3, "size": [7, 8]}, "neck"
    )
    section.check(("FPN",), "num size", mode=("nearest",))
    for message, arguments in {
        r"neck\.type = 'mmdet\.FPN': only PAFPN": {"kinds": ("PAFPN",)},
        r"neck\.size, which is unknown": {"kinds": ("FPN",), "read": "num mode"},
        r"neck\.num = 5: only 4": {"kinds": ("FPN",), "read": "mode size", "num": (4,)},
    }.items():
        with pytest.raises(ValueError, match=message):
            section.check(**arguments)
    assert section.number("num") == 5
    assert section.numbers("size") == [7, 8]
    for wrong, message in (("size", "expected one number"), ("type", "expected numbers")):
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
