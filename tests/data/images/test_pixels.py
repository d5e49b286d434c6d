"""Test the options for reading image files."""

import math

import pytest

from detlite.config import load_config
from detlite.data.images.pixels import ImageOptions, build_image_options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_pixels": 0}, "max_pixels=0: must be an integer in 1"),
        ({"bits": 32}, r"bits=32: must be an integer in 8\.\.16"),
        ({"bits": True}, "bits=True"),
        ({"value_range": (5, 1)}, r"value_range=\(5, 1\): must be pairs"),
        ({"value_range": (0, math.nan)}, "value_range"),
        ({"value_range": ("a", "b")}, "value_range"),
        ({"value_range": (0, 1, 0, 2)}, "one pair of numbers, or 3 for the channels"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ImageOptions(**options)


@pytest.mark.parametrize(
    ("convention", "upright"), [("", True), ("detectron2", True), ("maskrcnn-benchmark", False)]
)
def test_exif_orientation_follows_the_convention(convention, upright):
    keys = ["MODEL.CONVENTION", convention]
    assert build_image_options(load_config(None, keys)).exif_orientation == upright
    keys += ["MODEL.CONVENTION_OVERRIDE", [f"exif_orientation={not upright}"]]
    assert build_image_options(load_config(None, keys)).exif_orientation != upright
