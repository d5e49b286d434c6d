"""Read a single box or mask by the rules of annotation files."""

from typing import Any, NamedTuple

import numpy as np

from . import rules
from .judge import CLIPPED, PARTS
from .notation import Note, normalize, segmentation_of
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
        problem = rules.problem_text(odd.row, Flag.BAD_BOX, codes[0], height, width)
        return Reading(None, problem)
    return Reading(judged[0].tolist(), note=CLIPPED if far[0] else odd.notes.get("bbox"))


def read_segmentation(value: Any, height: int, width: int, may_be_empty: bool = False) -> Reading:
    """Read polygons or an RLE of an image, which `may_be_empty` of pixels."""
    odd, limits = normalize({"segmentation": value}), np.array([[width, height]], np.float64)
    codes, _, parts = rules.judge_masks([odd.entry], limits)
    if codes[0] and not (may_be_empty and codes[0] == rules.EMPTY):
        flag = Flag.BAD_MASK if codes[0] > 0 else Flag.NO_MASK
        return Reading(None, rules.problem_text(odd.row, flag, max(codes[0], 1), height, width))
    if parts[0]:
        return Reading(rules.valid_polygons(odd.entry, limits[0]), note=PARTS)
    return Reading(segmentation_of(odd.entry), note=odd.notes.get("segmentation"))
