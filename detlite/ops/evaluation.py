"""What an evaluation counts: pixels that masks share, and detections that find objects."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def mask_intersections(
    data: Tensor,
    lengths: Tensor,
    pixels: Tensor,
    index: Tensor,
    other_data: Tensor,
    other_lengths: Tensor,
    other_pixels: Tensor,
    ranges: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Counts the pixels that run-length encoded masks share, pair by pair, without bitmaps.

    The numbers are those of pycocotools' `merge` and `area`. All threads take part; the memory is
    that of the others' runs and the results. CPU only.

    Args:
        data: uint8 `[V]`, the texts of COCO's compressed run lengths of N masks end to end.
        lengths: int64 `[N]`, the bytes of each text.
        pixels: int64 `[N]`, height x width of each mask, below 2^32.
        index: int64 `[D]`, the mask that each row is about, 0 to N - 1; any may be left out.
        other_data, other_lengths, other_pixels: G other masks in the same form.
        ranges: int64 `[D, 2]`: the mask of a row is compared with the others from the first of
            the two numbers to before the second, which are of its image.

    Returns:
        shared: int64 `[P]`, the pixels in common, row by row and in the order of the others.
        areas: int64 `[D]`, the pixels of each row's mask; -1 where its text is not run lengths
            that cover its pixels, which then shares nothing.
        other_areas: int64 `[G]`, the same of the others.

    Raises:
        RuntimeError: a shape, type or number is wrong; the message names the argument.
    """
    return torch.ops.detlite.mask_intersections(
        data, lengths, pixels, index, other_data, other_lengths, other_pixels, ranges
    )


def match_detections(
    overlaps: Tensor,
    groups: Tensor,
    crowd: Tensor,
    ignored: Tensor,
    uncounted: Tensor,
    thresholds: Tensor,
) -> Tensor:
    """Gives detections to objects by COCO's rules (pycocotools' `COCOeval.evaluateImg`).

    In each group, an image and category, the detections choose in turn, best first: the object
    that overlaps most of those that are free, by at least the threshold. Objects that count go
    before those that do not, and crowds are always free. All threads take part. CPU only.

    Args:
        overlaps: float64 `[P]`, of each detection with each object of its group, 0 to 1, group by
            group and detection by detection.
        groups: int64 `[Q, 4]`: the first detection of a group, the one after its last, and the
            same of its objects. Groups follow each other over all detections.
        crowd: bool `[G]`, the objects that are crowds.
        ignored: bool `[A, G]`, for each of A sets of objects those that do not count.
        uncounted: bool `[A, D]`, the detections that do not count where they find nothing.
        thresholds: float64 `[T]`.

    Returns:
        uint8 `[A, T, D]`: 0 where a detection is wrong, 1 where it is right, 2 where it does not
        count.

    Raises:
        RuntimeError: a shape, type or number is wrong; the message names the argument.
    """
    return torch.ops.detlite.match_detections(
        overlaps, groups, crowd, ignored, uncounted, thresholds
    )


@torch.library.register_fake("detlite::mask_intersections")
def _(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    index, _, other_lengths, _, _ = arguments[3:]
    pairs = torch.library.get_ctx().new_dynamic_size()
    return index.new_empty(pairs), index.new_empty(len(index)), index.new_empty(len(other_lengths))


@torch.library.register_fake("detlite::match_detections")
def _(*arguments: Any) -> Tensor:
    uncounted, thresholds = arguments[-2:]
    sets, detections = uncounted.shape
    return uncounted.new_empty((sets, len(thresholds), detections), dtype=torch.uint8)
