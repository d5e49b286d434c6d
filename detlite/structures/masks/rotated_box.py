"""Area and oriented rectangle of a mask."""

from typing import Any

import numpy as np
from pycocotools import mask as rle_codec

from .rle import draw_rle


def area(mask: Any) -> int:
    """Return the number of pixels of a mask, a COCO RLE or a bool bitmap [H, W]."""
    return int(rle_codec.area(mask) if isinstance(mask, dict) else np.count_nonzero(mask))


def rotated_box(mask: Any) -> tuple[float, float, float, float, float]:
    """Return the rectangle of the smallest area around a mask, a COCO RLE or a bool bitmap [H, W].

    The result is (x, y, width, height, angle): the center in pixels (0.5 is the middle of the first
    one), the longer and the shorter side, and the angle of the longer side in degrees in
    [-90, 90), clockwise from the x axis. It is (0, 0, 0, 0, 0) for an empty mask. One side of the
    rectangle lies on an edge of the convex hull of the pixels (Freeman and Shapira, Determining the
    minimum-area encasing rectangle for an arbitrary closed curve, 1975). Pixels are squares, so
    an upright mask has the sides of its box; `cv2.minAreaRect` of pixel centers is smaller by 1.
    """
    is_rle = isinstance(mask, dict)
    bitmap = draw_rle(mask["counts"], *mask["size"]) if is_rle else np.asarray(mask)
    hull = _convex_hull(bitmap)
    if not len(hull):
        return (0.0,) * 5
    edges = np.roll(hull, -1, axis=0) - hull
    edges /= np.hypot(*edges.T)[:, None]
    axes = np.stack([edges, edges[:, ::-1] * [-1, 1]])  # [2, E, 2], along and across each edge
    positions = axes @ hull.T  # [2, E, H]
    low, high = positions.min(axis=2), positions.max(axis=2)  # [2, E]
    best = np.argmin((high - low).prod(axis=0))
    x, y = (low + high)[:, best] / 2 @ axes[:, best]
    along, across = (high - low)[:, best]
    dx, dy = axes[int(across > along), best]
    angle = (np.degrees(np.arctan2(dy, dx)) + 90) % 180 - 90
    return float(x), float(y), float(max(along, across)), float(min(along, across)), float(angle)


def _convex_hull(bitmap: np.ndarray) -> np.ndarray:
    """Return the corners [H, 2] of the convex hull of the set pixels (Andrew's monotone chain)."""
    x = np.flatnonzero(bitmap.any(axis=0))
    tops = bitmap[:, x].argmax(axis=0)
    bottoms = len(bitmap) - bitmap[::-1, x].argmax(axis=0)
    chains = []
    for y, step in ((tops, 1), (bottoms, -1)):
        points = np.stack([np.concatenate([x, x + 1]), np.concatenate([y, y])], axis=1)
        hull: list[list[int]] = []
        for column, row in np.unique(points, axis=0)[::step].tolist():
            while len(hull) > 1 and _turns_back(hull[-2], hull[-1], column, row):
                hull.pop()
            hull.append([column, row])
        chains += hull
    return np.array(chains, float).reshape(-1, 2)


def _turns_back(a: list[int], b: list[int], x: int, y: int) -> bool:
    return (b[0] - a[0]) * (y - a[1]) <= (b[1] - a[1]) * (x - a[0])
