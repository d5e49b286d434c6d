"""Test the options for reading image files."""

import math

import pytest

from detlite.data.images.pixels import ImageOptions


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
