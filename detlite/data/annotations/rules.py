"""The rules by which boxes, masks, areas and keypoints are usable, and all of their thresholds.

Each rule is decided for many annotations together, and only here. A number says which rule a value
breaks, 0 none; `box_text` and the like describe it.

Letters in shapes: N annotations, Q polygons, M run-length masks.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from pycocotools import mask as rle_codec

from detlite.structures.masks.formats import Segmentation, polygons_to_rle, to_bitmap
from detlite.structures.masks.rle import (
    decode_runs,
    join_strings,
    run_lengths,
    sum_runs,
    tight_bounds,
)

from .notation import Entry, Rle

# Tools round outwards: a box may exceed the image by 2 pixels or 0.1 of its side without a note.
_OVERHANG_PIXELS, _OVERHANG_FRACTION = 2.0, 0.1
_MAX_SPARSE = 25  # pixels of the box of an object of one pixel
_POLYGON_MARGIN = 64  # pixels by which a polygon may exceed its image, or the image's longer side
# Largest distance between the edges of a box and of its mask: pixels, or fraction of the side.
_MAX_PIXELS_OFF, _MAX_FRACTION_OFF = 3.0, 0.1
TINY = 1  # a side of a box below it is reported
SAMPLE = 2000  # boxes of a file that are compared with their masks
MIN_BOXES = 4  # fewer boxes cannot show that all are wrong

NO_BOX = 1  # of `judge_boxes`
BOX_OUTSIDE = (4, 6)
OUTSIDE, _WRONG_SIZE = 5, 6  # of `judge_masks`


def judge_boxes(boxes: np.ndarray, limits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Judge boxes float64 [N, 4] (x, y, width, height) in images of (width, height) [N, 2].

    Returns:
        The broken rules [N]; the boxes, clipped if they exceed their image far; and bool [N], True
        for these.
    """
    start, sides = boxes[:, :2], boxes[:, 2:]
    with np.errstate(invalid="ignore", over="ignore"):
        low, high = np.maximum(start, 0), np.minimum(start + sides, limits)
        in_pixel = ((start >= 0) & (start <= 1) & (sides < 1)).all(1) & (limits.min(1) > 1)
        outside = low >= high
        short = low.astype(np.float32) >= high.astype(np.float32)  # as in targets
        broken = [np.isnan(boxes).any(1), (sides <= 0).any(1), in_pixel,
                  outside[:, 0], short[:, 0], outside[:, 1], short[:, 1]]  # fmt: skip
        codes = np.select(broken, range(1, 8), 0)
        overhang = np.maximum(-start, start + sides - limits)
        allowed = np.maximum(_OVERHANG_PIXELS, _OVERHANG_FRACTION * sides)
        far = (codes == 0) & (overhang > allowed).any(1)
        clipped = np.concatenate([low, high - low], 1)
    return codes, np.where(far[:, None], clipped, boxes), far


def box_text(code: int, box: Sequence[float], height: int, width: int) -> str:
    """Describe what is wrong with a box; `code` is not NO_BOX."""
    axis = (code - 4) // 2
    return (
        f"bbox {box} has width {box[2]:g} and height {box[3]:g}: both must be positive",
        f"bbox {box} is inside the first pixel. Boxes are in pixels: multiply fractions by the "
        f"image size {width}x{height}",
        f"bbox {box} is outside the {width}x{height} image",
        f"bbox {box} has a side of {box[2 + axis]}, too short for 32-bit numbers",
    )[code - 2 if code < 4 else 2 + code % 2]


def judge_masks(
    entries: Sequence[Entry], limits: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Judge the masks of N entries in images of (width, height) [N, 2].

    Returns:
        The broken rules [N], -1 without a mask; the pixels of run-length masks, float64 [N]; and
        bool [N], True if some of the polygons are unusable.
    """
    codes, pixels = np.full(len(entries), -1), np.zeros(len(entries))
    masks = [entry.segmentation or [] for entry in entries]
    rings = [mask if isinstance(mask, list) else [] for mask in masks]
    counts = np.fromiter(map(len, rings), np.int64, len(rings))
    owners = np.repeat(np.arange(len(entries)), counts)
    broken, visible = judge_polygons([*chain.from_iterable(rings)], limits[owners])
    kept = np.bincount(owners[broken == 0], minlength=len(entries))
    seen = np.bincount(owners[visible], minlength=len(entries)) > 0
    has = np.flatnonzero(counts)
    codes[has] = np.where(kept[has] > 0, OUTSIDE, broken[(counts.cumsum() - counts)[has]])
    codes[seen] = 0
    rles = {n: mask for n, mask in enumerate(masks) if isinstance(mask, Rle)}
    chosen = np.array([*rles], np.int64)
    codes[chosen], pixels[chosen] = _judge_rles([*rles.values()], limits[chosen])
    return codes, pixels, seen & (kept < counts)


def judge_polygons(
    polygons: Sequence[Sequence[float]], limits: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Judge polygons [Q] in images of (width, height) [Q, 2].

    Returns:
        The broken rules [Q], and bool [Q], True for valid polygons that are visible.
    """
    lengths = np.fromiter(map(len, polygons), np.int64, len(polygons))
    few = (lengths < 6) | (lengths % 2 > 0)
    if few.any():
        polygons = [ring for ring, is_few in zip(polygons, few, strict=True) if not is_few]
    sizes = lengths[~few]
    corners = np.fromiter(chain.from_iterable(polygons), np.float64, sizes.sum()).reshape(-1, 2)
    low, high = np.zeros((2, len(lengths), 2))
    if len(sizes):
        first = (sizes.cumsum() - sizes) // 2
        low[~few] = np.minimum.reduceat(corners, first)
        high[~few] = np.maximum.reduceat(corners, first)
    longest = limits.max(1)
    margin = np.maximum(longest, _POLYGON_MARGIN)
    in_pixel = ((low >= 0) & (high <= 1)).all(1) & ((high - low).max(1) < 1) & (limits.min(1) > 1)
    far = (low.min(1) < -margin) | (high.max(1) > longest + margin)
    codes = np.select([few, (low == high).any(1), in_pixel, far], range(1, 5), 0)
    return codes, (codes == 0) & ((low < limits) & (high > 0)).all(1)


def _judge_rles(masks: Sequence[Rle], limits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the broken rules of run-length masks [M], and their pixels, float64 [M]."""
    strings = [mask.counts if isinstance(mask.counts, str) else "" for mask in masks]
    decoded, counts, valid = decode_runs(*join_strings(strings))
    plain = [mask.counts if isinstance(mask.counts, list) else [] for mask in masks]
    numbers = np.fromiter(map(len, plain), np.int64, len(plain))
    runs = np.fromiter(chain.from_iterable(plain), np.int64, numbers.sum())
    # Each mask has runs in one of both forms.
    (pixels, total, negative), (more, rest, wrong) = (
        sum_runs(decoded, counts),
        sum_runs(runs, numbers),
    )
    pixels, total = pixels + more, total + rest
    sizes = np.array([mask.size for mask in masks], np.int64).reshape(-1, 2)
    broken = [(sizes != limits[:, ::-1]).any(1), negative | wrong | ~valid,
              total != limits.prod(1), pixels == 0]  # fmt: skip
    return np.select(broken, range(_WRONG_SIZE, _WRONG_SIZE + 4), 0), pixels


def is_swapped(mask: Any, code: int, height: int, width: int) -> bool:
    """Return True for run lengths of size (width, height)."""
    swapped = isinstance(mask, Rle) and mask.size == (width, height)
    return bool(swapped and code == _WRONG_SIZE and height != width)


def mask_text(code: int, mask: Any, written: Any, height: int, width: int) -> str:
    """Describe what is wrong with a mask that is in COCO's types; `written` is the file's value."""
    size, polygon = f"{width}x{height}", mask[0] if isinstance(mask, list) else []
    if code == 1:
        count = f"has a polygon of {len(polygon)} numbers"
        text = f"{count}: x and y of at least three points are needed"
    elif code == 2:
        text = "has a polygon without area"
    elif code == 3:
        text = f"has a polygon inside the first pixel: multiply fractions by the size {size}"
    elif code == 4:
        reach = f"from {min(polygon):g} to {max(polygon):g}"
        text = f"has a polygon {reach}, too far outside the {size} image"
    elif code == OUTSIDE:
        text = f"is outside the {size} image"
    elif code == _WRONG_SIZE:
        given = written.get("size") if isinstance(written, dict) else None
        text = f"has size {given} [height, width], its image [{height}, {width}]"
    elif code == _WRONG_SIZE + 1:
        text = "has RLE counts that are not run lengths"
    elif code == _WRONG_SIZE + 2:
        runs = run_lengths(mask.counts).sum(dtype=np.float64)
        text = f"has RLE counts over {runs:.0f} of {height * width} pixels"
    else:
        text = "is empty: no pixel is set"
    return f"segmentation {text}"


def judge_areas(areas: np.ndarray, boxes: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Return bool [N], True for areas [N] in pixels, of objects with boxes [N, 4]."""
    with np.errstate(invalid="ignore"):
        is_fraction = (areas < 1) & (boxes[:, 2] * boxes[:, 3] > _MAX_SPARSE)
        return (areas > 0) & (areas <= limits.prod(1)) & ~is_fraction


def judge_keypoints(
    keypoints: Sequence[Sequence[float] | None], count: int, boxes: np.ndarray, limits: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Judge the keypoints of N objects that should have `count` each, or none.

    Returns:
        The broken rules [N]; the numbers of labeled keypoints, int64 [N]; and bool [N], True if a
        labeled keypoint is at (0, 0) or outside of the image, or none is in the box [N, 4].
    """
    lengths = np.array([len(points or ()) for points in keypoints], np.int64)
    codes = np.where((lengths > 0) & (lengths != 3 * count), 1, 0)
    labeled, misplaced = np.zeros(len(codes), np.int64), np.zeros(len(codes), bool)
    chosen = np.flatnonzero((lengths > 0) & (codes == 0))
    values = chain.from_iterable(keypoints[n] or () for n in chosen.tolist())
    points = np.fromiter(values, np.float64, 3 * count * len(chosen)).reshape(-1, count, 3)
    unknown = ~np.isin(points[..., 2], (0, 1, 2)).all(1)
    codes[chosen] = np.where(unknown, 2, 0)
    x_y, visible = points[..., :2], points[..., 2] > 0
    labeled[chosen] = visible.sum(1) * ~unknown
    low, high = boxes[chosen, None, :2] - 1, boxes[chosen, None, :2] + boxes[chosen, None, 2:] + 1
    outside = ((x_y < -1) | (x_y > limits[chosen, None])).any(2) | (x_y == 0).all(2)
    inside = ((x_y >= low) & (x_y <= high)).all(2)
    has_box = ~np.isnan(boxes[chosen]).any(1)
    wrong = (outside & visible).any(1) | (visible.any(1) & ~(inside & visible).any(1))
    misplaced[chosen] = wrong & has_box & ~unknown
    return codes, labeled, misplaced


def keypoints_text(code: int, length: int, count: int) -> str:
    """Describe what is wrong with a list of keypoints."""
    if code == 1:
        return f"keypoints has {length} numbers, not x, y and visibility of {count} points"
    return "keypoints has a visibility that is not 0, 1 or 2"


def look_like_corners(boxes: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Return bool [N], True for boxes that would also be valid as corners in their images."""
    low, high = boxes[:, :2], boxes[:, 2:]
    return np.all((low >= 0) & (low < high) & (high <= limits), axis=1)


def boxes_match(box: Sequence[float], tight: Sequence[float]) -> bool:
    """Return True if all sides of two boxes (x, y, width, height) are near each other."""
    for axis in (0, 1):
        start_off = tight[axis] - box[axis]
        end_off = start_off + tight[axis + 2] - box[axis + 2]
        allowed = max(_MAX_PIXELS_OFF, _MAX_FRACTION_OFF * box[axis + 2])
        if max(abs(start_off), abs(end_off)) > allowed:
            return False
    return True


def is_quadrilateral(segmentation: Segmentation) -> bool:
    """Return True for a polygon of four corners, such as a box or an oriented box."""
    if not isinstance(segmentation, list) or len(segmentation) != 1:
        return False
    points = segmentation[0]
    return len(points) == 8 or (len(points) == 10 and points[:2] == points[8:])


def tight_box(bitmap: np.ndarray) -> list[int] | None:
    """Return the box [x, y, width, height] of the pixels of a bitmap; None without a pixel."""
    left, top, right, bottom = tight_bounds(bitmap)
    return [left, top, right - left, bottom - top] if right else None


def mask_box(segmentation: Segmentation, height: int, width: int) -> list[int] | None:
    """Return the tight box [x, y, width, height] of a valid mask; None if it has no pixel."""
    return tight_box(to_bitmap(segmentation, height, width))


def mask_extent(segmentation: Segmentation, height: int, width: int) -> list[float]:
    """Return the box (x, y, width, height) of a valid mask, of polygons by their corners."""
    if isinstance(segmentation, dict):
        runs = run_lengths(segmentation["counts"])
        ends = runs.cumsum()
        first, last = (ends - runs)[1::2], ends[1::2] - 1
        first, last = first[first <= last], last[first <= last]
        (x1, x2), (y1, y2) = (first[0] // height, last[-1] // height), (0, height - 1)
        if (first // height == last // height).all():
            y1, y2 = (first % height).min(), (last % height).max()
        return [int(x) for x in (x1, y1, x2 - x1 + 1, y2 - y1 + 1)]
    low_high = []
    for start, side in ((0, width), (1, height)):
        values = [value for polygon in segmentation for value in polygon[start::2]]
        low_high.append((max(min(values), 0), min(max(values), side)))
    (x1, x2), (y1, y2) = low_high
    return [x1, y1, x2 - x1, y2 - y1]


def mask_area(segmentation: Segmentation, height: int, width: int) -> float:
    """Return the number of pixels of a valid mask."""
    if isinstance(segmentation, dict):
        return float(run_lengths(segmentation["counts"])[1::2].sum())
    return float(rle_codec.area(polygons_to_rle(segmentation, height, width)))
