"""Test the arrangement of images on contact sheets."""

import numpy as np
import pytest
from PIL import Image

from detlite.apps.drawing.contact_sheet import contact_sheet, side_by_side


class TestContactSheet:
    def test_rows_have_images_of_equal_height(self) -> None:
        shapes = [(200, 100), (100, 100), (50, 100), (1000, 250), (90, 60)]
        images = [Image.new("RGB", size, (40 * k, 0, 0)) for k, size in enumerate(shapes)]
        sheet = contact_sheet([[image] for image in images], width=380, row_height=80, gap=10)
        # The first row fills the width, the wide image has its own row, the last has its height.
        assert sheet.size == (380, 10 + 97 + 10 + 90 + 10 + 80 + 10)
        assert [sheet.getpixel((x, 60)) for x in (15, 220, 325)] == [
            (0, 0, 0), (40, 0, 0), (80, 0, 0),
        ]  # fmt: skip
        assert sheet.getpixel((209, 60)) == (255, 255, 255)
        assert sheet.getpixel((20, 120)) == sheet.getpixel((365, 200)) == (120, 0, 0)
        assert sheet.getpixel((125, 290)) == (160, 0, 0)
        assert sheet.getpixel((135, 290)) == (255, 255, 255)

    def test_groups_stay_together_below_their_headings(self) -> None:
        pair = [Image.new("RGB", (100, 100)), Image.new("RGB", (100, 100), "red")]
        sheet = contact_sheet([pair, pair], ["labels", "detections"], 416, 200, gap=8)
        assert sheet.size == (416, 2 * (196 + 32) + 8)
        above = np.asarray(sheet)[:32]
        assert (above[:, 8:100] < 100).any()
        assert (above[:, 212:300] < 100).any()
        assert sheet.getpixel((20, 40)) == (0, 0, 0)
        assert sheet.getpixel((400, 40)) == (255, 0, 0)

    def test_no_images(self) -> None:
        with pytest.raises(ValueError, match="at least one image"):
            contact_sheet([])


def test_side_by_side() -> None:
    joined = side_by_side([Image.new("RGB", (20, 30)), Image.new("RGB", (10, 10))], gap=4)
    assert joined.size == (34, 30)
    assert [joined.getpixel((30, y)) for y in (5, 15, 25)] == [(255,) * 3, (0,) * 3, (255,) * 3]
