"""Outlines of masks as polygons without holes."""

from itertools import pairwise
from typing import Any

import numpy as np
from contourpy import contour_generator

from detlite.structures.masks.rle import tight_bounds


def outlines(mask: np.ndarray) -> list[np.ndarray]:
    """Return the contours of the parts of a mask as polygons float64 [P, 2] of (x, y).

    A part with holes is cut into several parts without holes. Contours are halfway between the
    centers of pixels inside and outside, so a pixel belongs to the mask if its center is in a
    polygon. Parts that touch only at corners may be one polygon or two.

    Args:
        mask: bool or 0/1 [H, W].
    """
    mask = np.asarray(mask, dtype=bool)
    left, top, right, bottom = tight_bounds(mask)
    if not right:
        return []
    padded = np.pad(mask[top:bottom, left:right].astype(float), 1)
    # For each part, the points of its contours, the outer one first, and the start of each contour.
    filled: Any = contour_generator(z=padded, fill_type="OuterOffset").filled(0.5, 2.0)
    polygons = []
    for points, starts in zip(*filled, strict=True):
        if len(starts) > 2:
            parts = _cut(padded.shape, points, starts)
            polygons += [part + np.array((left - 1, top - 1)) for part in parts]
            continue
        ring = points[starts[0] : starts[1] - 1]  # without the last point, a copy of the first
        before, after = ring - np.roll(ring, 1, axis=0), np.roll(ring, -1, axis=0) - ring
        corner = before[:, 0] * after[:, 1] != before[:, 1] * after[:, 0]
        polygons.append(ring[corner] + [left - 0.5, top - 0.5])  # padded by 1, centers at 0.5
    return polygons


def _cut(shape: tuple[int, ...], points: np.ndarray, starts: np.ndarray) -> list[np.ndarray]:
    """Return the polygons of a part, cut at the middle of its first hole."""
    rings = [points[a : b - 1] for a, b in pairwise(starts)]
    crossings = np.concatenate([ring[ring[:, 1] % 1 == 0] for ring in rings])  # of rows
    part = np.zeros(shape, np.int64)
    np.add.at(part, (crossings[:, 1].astype(int), np.ceil(crossings[:, 0]).astype(int)), 1)
    part = part.cumsum(axis=1) % 2
    middle = int(np.ceil(rings[1][:, 0].mean()))
    columns = np.arange(shape[1])
    return [*outlines(part * (columns < middle)), *outlines(part * (columns >= middle))]
