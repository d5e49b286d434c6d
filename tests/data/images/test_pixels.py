"""Test the options for reading image files."""

import pytest

from detlite.config import load_config
from detlite.data.images.pixels import build_image_options


@pytest.mark.parametrize(
    ("convention", "upright"), [("", True), ("detectron2", True), ("maskrcnn-benchmark", False)]
)
def test_exif_orientation_follows_the_convention(convention, upright):
    keys = ["MODEL.CONVENTION", convention]
    assert build_image_options(load_config(None, keys)).exif_orientation == upright
    keys += ["MODEL.CONVENTION_OVERRIDE", [f"exif_orientation={not upright}"]]
    assert build_image_options(load_config(None, keys)).exif_orientation != upright
