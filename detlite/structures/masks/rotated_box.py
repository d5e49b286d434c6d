"""Area and oriented rectangle of a mask, from its runs of pixels."""

from typing import Any

import numpy as np

from .rle import boundaries_of_bitmap, boundaries_of_counts


def area(mask: Any) -> int:
    """Return the number of pixels of a mask, a COCO RLE or a bool bitmap [H, W]."""
    starts, ends, _ = _runs(mask)
    return int((ends - starts).sum())


def rotated_box(mask: Any) -> tuple[float, float, float, float, float]:
    """Return the rectangle of the smallest area around a mask, a COCO RLE or a bool bitmap [H, W].

    The result is (x, y, width, height, angle): the center in pixels (0.5 is the middle of the first
    one), the longer and the shorter side, and the angle of the longer side in degrees in
    [-90, 90), clockwise from the x axis. It is (0, 0, 0, 0, 0) for an empty mask. One side of the
    rectangle lies on an edge of the convex hull of the pixels (Freeman and Shapira, Determining the
    minimum-area encasing rectangle for an arbitrary closed curve, 1975). Pixels are squares, so
    an upright mask has the sides of its box; `cv2.minAreaRect` of pixel centers is smaller by 1.
    """
    starts, ends, height = _runs(mask)
    if not len(starts):
        return (0.0,) * 5
    hull = _convex_hull(_corners(starts, ends, height))
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


def _runs(mask: Any) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the first positions of runs of pixels and those after their last ones, column by
    column, and the height of the image."""
    if isinstance(mask, dict):
        height, width = mask["size"]
        (edges,) = boundaries_of_counts([mask["counts"]], height * width)
    else:
        bitmap = np.asarray(mask)
        height, width = bitmap.shape
        edges = boundaries_of_bitmap(bitmap)
    edges = edges.astype(np.int64)
    starts, ends = edges[0::2], edges[1::2]
    ends = ends if len(ends) == len(starts) else np.append(ends, height * width)
    return starts[starts < ends], ends[starts < ends], height


def _corners(starts: np.ndarray, ends: np.ndarray, height: int) -> np.ndarray:
    """Return corners [N, 2] of pixels, among them all that are corners of the convex hull."""
    (first, top), (last, bottom) = divmod(starts, height), divmod(ends - 1, height)
    one, several, more = last == first, last > first, last > first + 1
    columns = [  # left edge of a column, and the rows in which a run starts and ends in it
        (first, top, np.where(one, bottom + 1, height)),
        (last[several], np.zeros(several.sum(), int), bottom[several] + 1),
        (first[more] + 1, np.zeros(more.sum(), int), np.full(more.sum(), height)),
        (last[more] - 1, np.zeros(more.sum(), int), np.full(more.sum(), height)),
    ]
    x, y, end = (np.concatenate(values) for values in zip(*columns, strict=True))
    return np.stack([np.concatenate([x, x + 1, x, x + 1]), np.concatenate([y, y, end, end])], 1)


def _convex_hull(points: np.ndarray) -> np.ndarray:
    """Return the corners [H, 2] of the convex hull of integer points (Andrew's monotone chain)."""
    order = np.lexsort(points.T[::-1])  # by x, then y
    points = points[order]
    ends = np.flatnonzero(np.diff(points[:, 0], append=points[-1, 0] + 1))  # last of each x
    starts = np.concatenate([[0], ends[:-1] + 1])
    chains = []
    for chain in (points[starts], points[ends][::-1]):
        hull: list[list[int]] = []
        for x, y in chain.tolist():
            while len(hull) > 1 and _turns_back(hull[-2], hull[-1], x, y):
                hull.pop()
            hull.append([x, y])
        chains.append(np.array(hull, float))
    return np.concatenate(chains)


def _turns_back(a: list[int], b: list[int], x: int, y: int) -> bool:
    return (b[0] - a[0]) * (y - a[1]) <= (b[1] - a[1]) * (x - a[0])
