"""Read a single box or mask by the rules of annotation files."""

from typing import Any, NamedTuple

import numpy as np

from . import rules
from .blocks import segmentation_of
from .judge import CLIPPED, PARTS
from .notation import Note, normalize
from .selection import Flag


class Reading(NamedTuple):
    """A value in COCO's notation, or what is wrong with it.

    Attributes:
        value: the value that was read; None if there is a problem.
        problem: why it cannot be used.
        note: what was written in another notation, and how it is read; None if as written.
    """

    value: Any = None
    problem: str | None = None
    note: Note | None = None


def read_box(value: Any, height: int, width: int) -> Reading:
    """Read a box (x, y, width, height) in pixels of an image; a far overhang is clipped."""
    odd = normalize({"bbox": value})
    box, limits = np.array([odd.entry.bbox], np.float64), np.array([[width, height]], np.float64)
    codes, judged, far = rules.judge_boxes(box, limits)
    if codes[0]:
        text = odd.problems.get(Flag.BAD_BOX)
        return Reading(None, text or rules.box_text(codes[0], odd.entry.bbox, height, width))
    if far[0]:
        return Reading(judged[0].tolist(), note=CLIPPED)
    return Reading(odd.entry.bbox, note=odd.notes.get("bbox"))


def read_segmentation(value: Any, height: int, width: int) -> Reading:
    """Read polygons or an RLE of an image."""
    odd = normalize({"segmentation": value})
    entry, limits = odd.entry, np.array([[width, height]], np.float64)
    codes, _, parts = rules.judge_masks([entry], limits)
    code = int(codes[0])
    if code < 0:
        missing = f"segmentation is {'missing' if value is None else 'empty'}"
        return Reading(None, odd.problems.get(Flag.BAD_MASK, missing))
    if code:
        text = rules.mask_text(code, entry.segmentation, value, height, width)
        return Reading(None, odd.parts.get(0, text) if code != rules.OUTSIDE else text)
    mask = segmentation_of(entry)
    if parts[0] and isinstance(mask, list):
        limits = np.repeat(limits, len(mask), axis=0)
        valid = rules.judge_polygons(mask, limits)[0] == 0
        return Reading([ring for ring, is_valid in zip(mask, valid, strict=True) if is_valid],
                       note=PARTS)  # fmt: skip
    return Reading(mask, note=odd.notes.get("segmentation"))


def rle_problem(rle: Any, height: int, width: int, may_be_empty: bool = False) -> str | None:
    """Return what is wrong with an RLE (compressed or not) of an image, or None."""
    problem = read_segmentation({"size": rle.get("size"), "counts": rle.get("counts")},
                                height, width).problem  # fmt: skip
    if problem == "segmentation is empty: no pixel is set" and may_be_empty:
        return None
    return problem and problem.removeprefix("segmentation ")
