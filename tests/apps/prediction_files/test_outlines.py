"""Polygons of masks contain the pixels of the masks."""

import numpy as np
from matplotlib.path import Path

from detlite.apps.prediction_files.outlines import outlines

SIZE = (40, 60)  # height, width


def fill(polygon: np.ndarray) -> np.ndarray:
    """Return the pixels whose centers are in a polygon."""
    y, x = np.mgrid[: SIZE[0], : SIZE[1]] + 0.5
    centers = np.stack([x.ravel(), y.ravel()], axis=1)
    return Path(polygon).contains_points(centers).reshape(SIZE)


def test_pixels_are_inside_if_their_centers_are() -> None:
    y, x = np.mgrid[: SIZE[0], : SIZE[1]] + 0.5
    radius = np.hypot(y - SIZE[0] / 2, x - SIZE[1] / 2)
    ring, rings = (radius > 5) & (radius < 9), (radius % 6 < 3) & (radius < 18)
    rings[20, 30:33] = False
    random = [np.random.default_rng(0).random(SIZE) < density for density in (0.1, 0.6, 1.0)]
    for mask in (ring, rings, *random):
        assert (sum(map(fill, outlines(mask))) == mask).all()
    assert len(outlines(ring)) == 2  # it is cut
    assert outlines(np.zeros(SIZE)) == []


def test_straight_edges_have_no_extra_corners() -> None:
    mask = np.zeros(SIZE, bool)
    mask[10:30, 20:50] = True
    (part,) = outlines(mask)
    assert len(part) == 8  # a rectangle with corners cut by half a pixel
    assert part.min(axis=0).tolist() == [20, 10]
    assert part.max(axis=0).tolist() == [50, 30]
