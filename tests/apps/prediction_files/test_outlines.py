"""Polygons of masks contain the pixels of the masks."""

import numpy as np
from PIL import Image, ImageDraw

from detlite.apps.prediction_files.outlines import outlines

SIZE = (40, 60)  # height, width


def draw_mask() -> np.ndarray:
    """Draw a mask of two parts, one with a hole."""
    image = Image.new("1", SIZE[::-1])
    draw = ImageDraw.Draw(image)
    draw.ellipse((5, 5, 25, 30), fill=1)
    draw.ellipse((10, 12, 18, 22), fill=0)
    draw.polygon([(40, 3), (58, 20), (35, 38)], fill=1)
    return np.array(image)


def fill(polygon: np.ndarray) -> np.ndarray:
    """Return the pixels whose centers are in a polygon, by the even-odd rule."""
    y, x = np.mgrid[: SIZE[0], : SIZE[1]] + 0.5
    inside = np.zeros(SIZE, bool)
    for (x1, y1), (x2, y2) in zip(polygon, np.roll(polygon, -1, axis=0), strict=True):
        crosses = (y1 > y) != (y2 > y)
        with np.errstate(divide="ignore", invalid="ignore"):
            inside ^= crosses & (x < x1 + (y - y1) * (x2 - x1) / (y2 - y1))
    return inside


def test_pixels_are_inside_if_their_centers_are() -> None:
    y, x = np.mgrid[: SIZE[0], : SIZE[1]] + 0.5
    radius = np.hypot(y - SIZE[0] / 2, x - SIZE[1] / 2)
    rings = (radius % 6 < 3) & (radius < 18)
    rings[20, 30:33] = False
    random = [np.random.default_rng(0).random(SIZE) < density for density in (0.1, 0.6, 1.0)]
    for mask in (draw_mask(), rings, *random):
        inside = np.zeros(SIZE, int)
        for part in outlines(mask):
            inside += fill(part)
        assert (inside == mask).all()
    assert len(outlines(draw_mask())) == 3  # the one with a hole is cut into two
    assert outlines(np.zeros(SIZE)) == []


def test_straight_edges_have_no_extra_corners() -> None:
    mask = np.zeros(SIZE, bool)
    mask[10:30, 20:50] = True
    (part,) = outlines(mask)
    assert len(part) == 8  # a rectangle with corners cut by half a pixel
    assert part.min(axis=0).tolist() == [20, 10]
    assert part.max(axis=0).tolist() == [50, 30]
