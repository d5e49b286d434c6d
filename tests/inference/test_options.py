"""Test the options of inference from a config."""

from detlite.config import load_config
from detlite.inference.options import View, build_options


def test_views_from_the_config():
    keys = ["INPUT.MIN_SIZE_TEST", 300, "INPUT.MAX_SIZE_TEST", 500, "TEST.BBOX_AUG.MAX_SIZE", 900,
            "TEST.BBOX_AUG.H_FLIP", True, "TEST.BBOX_AUG.SCALES", (200, 400)]  # fmt: skip
    assert build_options(load_config(None, keys)).views == []
    keys += ["TEST.BBOX_AUG.ENABLED", True]
    views = [View(300, 500), View(300, 500, True), View(200, 900), View(400, 900)]
    assert build_options(load_config(None, keys)).views == views
    keys += ["TEST.BBOX_AUG.SCALE_H_FLIP", True, "TEST.BBOX_AUG.H_FLIP", False]
    assert build_options(load_config(None, keys)).views == [
        View(300, 500), View(200, 900), View(200, 900, True), View(400, 900), View(400, 900, True),
    ]  # fmt: skip
