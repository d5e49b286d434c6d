"""The counts of an evaluation: pixels that masks share, and detections that match objects."""

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
    """Count the pixels that pairs of run-length encoded masks share, without bitmaps.

    The counts equal pycocotools' `merge` and `area`. Runs on all threads; memory holds the runs of
    the other masks and the results. CPU only.

    Args:
        data: uint8 `[V]`, the concatenated strings of COCO's compressed run lengths of N masks.
        lengths: int64 `[N]`, the bytes of each string.
        pixels: int64 `[N]`, height x width of each mask, below 2^32.
        index: int64 `[D]`, the mask of each row, 0 to N - 1.
        other_data, other_lengths, other_pixels: G other masks in the same form.
        ranges: int64 `[D, 2]` of (first, end): the mask of a row is compared with the other masks
            `first` to `end - 1`, those of its image.

    Returns:
        shared: int64 `[P]`, the shared pixels of each pair, row by row.
        areas: int64 `[D]`, the pixels of each row's mask; -1 if its string is not run lengths that
            cover all its pixels. Such a mask shares nothing.
        other_areas: int64 `[G]`, the same for the other masks.
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
    """Match detections to objects by COCO's rules (pycocotools' `COCOeval.evaluateImg`).

    In each group (one image and category), each detection in turn, the highest-scoring first,
    takes the free object with the highest overlap of at least the threshold. Counted objects have
    priority over ignored ones, and crowds are always free. Runs on all threads. CPU only.

    Args:
        overlaps: float64 `[P]`, from 0 to 1, of each detection with each object of its group,
            group by group and detection by detection.
        groups: int64 `[Q, 4]` of (first detection, end, first object, end), the ends exclusive.
            Together the groups cover all detections in order.
        crowd: bool `[G]`, True for crowds.
        ignored: bool `[A, G]`, the ignored objects in each of A sets (COCO's area ranges).
        uncounted: bool `[A, D]`, the detections that are ignored if they match nothing.
        thresholds: float64 `[T]`, the IoU thresholds.

    Returns:
        uint8 `[A, T, D]`: 0 for a wrong, 1 for a correct and 2 for an ignored detection.
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
