"""The rules by which boxes, masks, areas and keypoints are usable, and all of their thresholds.

Each rule is decided for many annotations together, and only here. A number says which rule a value
breaks, 0 none; `problem_text` describes it.

Letters in shapes: N annotations, Q polygons, M run-length masks.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np
from pycocotools import mask as rle_codec

from detlite.files.errors import short_repr
from detlite.structures.masks.formats import (
    MAX_OUTLINE,
    Segmentation,
    outline_length,
    polygons_to_rle,
)
from detlite.structures.masks.rle import (
    decode_runs,
    join_strings,
    run_lengths,
    sum_runs,
)

from .notation import Entry, Rle, Row
from .selection import Flag

# Tools round outwards: a box may exceed the image by 2 pixels or 0.1 of its side without a note.
_OVERHANG_PIXELS, _OVERHANG_FRACTION = 2.0, 0.1
_MAX_SPARSE = 25  # pixels of the box of an object of one pixel
_POLYGON_MARGIN = 64  # pixels by which a polygon may exceed its image, or the image's longer side
# Largest distance between the edges of a box and of its mask: pixels, or fraction of the side.
_MAX_PIXELS_OFF, _MAX_FRACTION_OFF = 3.0, 0.1
TINY = 1  # a side of a box below it is reported
SAMPLE = 200  # boxes of a file that are compared with their masks
MIN_BOXES = 4  # fewer boxes cannot show that all are wrong

NO_BOX, BOX_IN_PIXEL, BOX_OUTSIDE = 1, 3, 4  # of `judge_boxes`
_OUTSIDE, _WRONG_SIZE, EMPTY = 6, 7, 10  # of `judge_masks`
# The field that each flag is about, and what is wrong with it, by the number of the broken rule.
_IN_PIXEL = "inside the first pixel. Coordinates are in pixels: multiply fractions by the size"
_PROBLEMS = {
    Flag.UNKNOWN_IMAGE: ("image_id", ("is not in 'images'",)),
    Flag.BAD_CROWD: ("iscrowd", ("is not 0 or 1",)),
    Flag.UNKNOWN_CATEGORY: (
        "category_id", ("is not in 'categories', whose ids are {first} to {last}{hint}",),
    ),
    Flag.BAD_BOX: ("bbox", (
        "is not four finite numbers [x, y, width, height]",
        "has no positive width and height",
        "is " + _IN_PIXEL + " {width}x{height}",
        "is outside the {width}x{height} image",
        "has a side that is too short for 32-bit numbers",
    )),
    Flag.NO_MASK: (
        "segmentation", ("has no mask, but masks are trained (MODEL.MASK_ON False: boxes only)",),
    ),
    Flag.BAD_MASK: ("segmentation", (
        "is neither run lengths nor polygons of finite x and y of at least three points",
        "has a polygon without area",
        "has a polygon " + _IN_PIXEL + " {width}x{height}",
        "has a polygon too far outside the {width}x{height} image",
        f"has a polygon with an outline of more than {MAX_OUTLINE} pixels",
        "is outside the {width}x{height} image",
        "has another size [height, width] than its image, [{height}, {width}]",
        "has RLE counts that are not run lengths",
        "has RLE counts over another number of pixels than the {width}x{height} image",
        "is empty: no pixel is set",
    )),
    Flag.BAD_KEYPOINTS: (
        "keypoints", ("is not x, y and visibility (0, 1 or 2) of {points} points",),
    ),
}  # fmt: skip
FLAGS = tuple(_PROBLEMS)
FIELDS = {field: flag for flag, (field, _) in _PROBLEMS.items() if flag != Flag.NO_MASK}


def problem_text(
    row: Row,
    flag: Flag,
    code: int,
    height: int,
    width: int,
    categories: Sequence[int] = (0,),
    points: int = 0,
) -> str:
    """Describe the problem of an annotation `row`: the broken rule `code` of a flag.

    Its image has this size, and the file has categories with these ids and a number of keypoints.
    """
    field, texts = _PROBLEMS[flag]
    written, first, last, hint = row.get(field), min(categories), max(categories), ""
    if (written, first) in ((0, 1), (last + 1, 0)):
        hint = f". Were they counted from {1 - first}?"
    facts = {"first": first, "last": last, "hint": hint, "points": points}
    if flag == Flag.UNKNOWN_CATEGORY and written is None:
        return "category_id is missing: write the id of its category in 'categories'"
    text = texts[code - 1].format(height=height, width=width, **facts)
    return f"{field} {short_repr(written)} {text}"


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
        short = low.astype(np.float32) >= high.astype(np.float32)  # as in targets
        broken = [np.isnan(boxes).any(1), (sides <= 0).any(1), in_pixel,
                  (low >= high).any(1), short.any(1)]  # fmt: skip
        codes = np.select(broken, range(1, 6), 0)
        overhang = np.maximum(-start, start + sides - limits)
        allowed = np.maximum(_OVERHANG_PIXELS, _OVERHANG_FRACTION * sides)
        far = (codes == 0) & (overhang > allowed).any(1)
        clipped = np.concatenate([low, high - low], 1)
    return codes, np.where(far[:, None], clipped, boxes), far


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
    broken, visible = _judge_polygons([*chain.from_iterable(rings)], limits[owners])
    kept = np.bincount(owners[broken == 0], minlength=len(entries))
    seen = np.bincount(owners[visible], minlength=len(entries)) > 0
    has = np.flatnonzero(counts)
    codes[has] = np.where(kept[has] > 0, _OUTSIDE, broken[(counts.cumsum() - counts)[has]])
    codes[seen] = 0
    rles = {n: mask for n, mask in enumerate(masks) if isinstance(mask, Rle)}
    chosen = np.array([*rles], np.int64)
    codes[chosen], pixels[chosen] = _judge_rles([*rles.values()], limits[chosen])
    return codes, pixels, seen & (kept < counts)


def valid_polygons(entry: Entry, limits: np.ndarray) -> list[list[float]]:
    """Return the valid polygons of a mask in an image of (width, height) [2]."""
    rings = entry.segmentation if isinstance(entry.segmentation, list) else []
    broken, _ = _judge_polygons(rings, np.tile(limits, (len(rings), 1)))
    return [ring for ring, code in zip(rings, broken, strict=True) if not code]


def _judge_polygons(
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
    long, numbers = np.zeros(len(lengths), bool), (~few).cumsum() - 1
    for n in np.flatnonzero(~few & (lengths / 2 * (high - low).max(1) > MAX_OUTLINE)):
        ring = np.reshape(polygons[numbers[n]], (-1, 2))
        long[n] = outline_length(ring) > MAX_OUTLINE
    codes = np.select([few, (low == high).any(1), in_pixel, far, long], range(1, 6), 0)
    return codes, (codes == 0) & ((low < limits) & (high > 0)).all(1)


def _judge_rles(masks: Sequence[Rle], limits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the broken rules of run-length masks [M], and their pixels, float64 [M]."""
    strings = [mask.counts if isinstance(mask.counts, str) else "" for mask in masks]
    runs, counts, valid = decode_runs(*join_strings(strings))
    pixels, total, negative = sum_runs(runs, counts)
    # Each mask has runs in one of both forms.
    plain = [mask.counts if isinstance(mask.counts, list) else [] for mask in masks]
    counts = np.fromiter(map(len, plain), np.int64, len(plain))
    runs = np.fromiter(chain.from_iterable(plain), np.int64, counts.sum())
    more, rest, wrong = sum_runs(runs, counts)
    pixels, total = pixels + more, total + rest
    sizes = np.array([mask.size for mask in masks], np.int64).reshape(-1, 2)
    broken = [(sizes != limits[:, ::-1]).any(1), negative | wrong | ~valid,
              total != limits.prod(1), pixels == 0]  # fmt: skip
    return np.select(broken, range(_WRONG_SIZE, EMPTY + 1), 0), pixels


def judge_areas(areas: np.ndarray, boxes: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Return bool [N], True for areas [N] in pixels, of objects with boxes [N, 4]."""
    with np.errstate(invalid="ignore"):
        is_fraction = (areas < 1) & (boxes[:, 2] * boxes[:, 3] > _MAX_SPARSE)
        is_area = (areas > 0) & (areas <= limits.prod(1)) & ~is_fraction
        return np.where(np.isnan(boxes).any(1), areas > 0, is_area)


def judge_keypoints(
    keypoints: Sequence[Sequence[float] | None], count: int, boxes: np.ndarray, limits: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Judge the keypoints of N objects that should have `count` each, or none.

    Returns:
        Bool [N], True if they are not; the numbers of labeled keypoints, int64 [N]; and bool [N],
        True if a labeled keypoint is at (0, 0) or outside of the image, or none is in the box
        [N, 4].
    """
    lengths = np.array([len(points or ()) for points in keypoints], np.int64)
    bad = (lengths > 0) & (lengths != 3 * count)
    labeled, misplaced = np.zeros(len(bad), np.int64), np.zeros(len(bad), bool)
    chosen = np.flatnonzero((lengths > 0) & ~bad)
    values = chain.from_iterable(keypoints[n] or () for n in chosen.tolist())
    points = np.fromiter(values, np.float64, 3 * count * len(chosen)).reshape(-1, count, 3)
    known = np.isin(points[..., 2], (0, 1, 2)).all(1)
    bad[chosen] = ~known
    x_y, visible = points[..., :2], points[..., 2] > 0
    labeled[chosen] = visible.sum(1) * known
    low, high = boxes[chosen, None, :2] - 1, boxes[chosen, None, :2] + boxes[chosen, None, 2:] + 1
    outside = ((x_y < -1) | (x_y > limits[chosen, None])).any(2) | (x_y == 0).all(2)
    inside = ((x_y >= low) & (x_y <= high)).all(2)
    wrong = (outside & visible).any(1) | (visible.any(1) & ~(inside & visible).any(1))
    misplaced[chosen] = wrong & ~np.isnan(boxes[chosen]).any(1) & known
    return bad, labeled, misplaced


def look_like_corners(boxes: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Return bool [N], True for boxes that would also be valid as corners in their images."""
    low, high = boxes[:, :2], boxes[:, 2:]
    return np.all((low >= 0) & (low < high) & (high <= limits), axis=1)


def boxes_match(box: Sequence[float], tight: Sequence[float]) -> bool:
    """Return True if all sides of two boxes (x, y, width, height) are near each other."""
    one, other = np.reshape(box, (2, 2)), np.reshape(tight, (2, 2))
    starts, ends = other[0] - one[0], other.sum(0) - one.sum(0)
    allowed = np.maximum(_MAX_PIXELS_OFF, _MAX_FRACTION_OFF * one[1])
    return bool((np.maximum(abs(starts), abs(ends)) <= allowed).all())


def is_quadrilateral(segmentation: Segmentation) -> bool:
    """Return True for a polygon of four corners, such as a box or an oriented box."""
    if not isinstance(segmentation, list) or len(segmentation) != 1:
        return False
    points = segmentation[0]
    return len(points) == 8 or (len(points) == 10 and points[:2] == points[8:])


def mask_box(segmentation: Segmentation, height: int, width: int) -> list[int] | None:
    """Return the tight box [x, y, width, height] of a valid mask; None if it has no pixel."""
    if isinstance(segmentation, list):
        segmentation = polygons_to_rle(segmentation, height, width)
    runs = run_lengths(segmentation["counts"])
    starts, ends = runs.cumsum()[0:-1:2], runs.cumsum()[1::2]
    starts, last = starts[starts < ends], ends[starts < ends] - 1
    if not len(starts):
        return None
    (x1, x2), (y1, y2) = (starts[0] // height, last[-1] // height), (0, height - 1)
    if (starts // height == last // height).all():  # no run into the next column
        y1, y2 = (starts % height).min(), (last % height).max()
    return [int(x) for x in (x1, y1, x2 - x1 + 1, y2 - y1 + 1)]


def mask_extent(segmentation: Segmentation, height: int, width: int) -> list[float] | None:
    """Return the box of a valid mask without drawing it: of polygons, around their corners."""
    if isinstance(segmentation, dict):
        return mask_box(segmentation, height, width)  # type: ignore[return-value]
    corners = np.concatenate(segmentation).reshape(-1, 2)
    low, high = corners.min(0).clip(0), np.minimum(corners.max(0), (width, height))
    return [*low.tolist(), *(high - low).tolist()]


def mask_area(segmentation: Segmentation, height: int, width: int) -> float:
    """Return the number of pixels of a valid mask."""
    if isinstance(segmentation, dict):
        return float(run_lengths(segmentation["counts"])[1::2].sum())
    return float(rle_codec.area(polygons_to_rle(segmentation, height, width)))
