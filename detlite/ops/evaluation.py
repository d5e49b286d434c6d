"""The steps of an evaluation: overlaps, matches of detections and objects, precision and recall.

The kernels (csrc/evaluation) run on all threads of the CPU; there are none for other devices.
"""

import torch
from torch import Tensor

from .dispatch import declare

_CHUNK_BYTES = 1 << 22  # of an annotation file that a thread reads at a time


def read_annotations(text: Tensor, chunk_bytes: int = _CHUNK_BYTES) -> list[Tensor]:
    """Read the entries of a COCO annotation or results file into columns.

    Args:
        text: uint8 `[B]`, the JSON text: a list of N entries, or an object with the entries in
            "annotations".
        chunk_bytes: size of the parts that threads read.

    Returns:
        The bounds of the list in the text, int64 `[2]`, and the columns in the order, with the
        shapes and types, of `detlite.evaluation.reading.columns.Columns`. The bounds are -1 if the
        text is no such JSON, or a value does not have the type that COCO's format defines. Without
        a kernel an empty list: there is no fallback, and the caller parses the text with `json`.

    Raises:
        RuntimeError: the text is not uint8 `[B]`, or `chunk_bytes` is below 1.
    """
    kernel = getattr(torch.ops.detlite, "read_annotations", None)
    return [] if kernel is None else kernel(text, chunk_bytes)


def encode_polygons(
    corners: Tensor, polygons: Tensor, masks: Tensor, sizes: Tensor
) -> tuple[Tensor, Tensor]:
    """Encode the union of each mask's polygons as COCO's compressed run lengths.

    The pixels are the same as with pycocotools' `frPyObjects` and `merge`.

    Args:
        corners: float64 `[V, 2]`, (x, y) of all polygons. Coordinates beyond 2^25 / 5 pixels are
            moved to that distance.
        polygons: int64 `[Q]`, the number of corners of each polygon.
        masks: int64 `[N]`, the number of polygons of each mask.
        sizes: int64 `[N, 2]`, (height, width) of each mask.

    Returns:
        data: uint8 `[B]`, the concatenated strings.
        ends: int64 `[N]`, the end of each string in `data`.
    """
    return torch.ops.detlite.encode_polygons(corners, polygons, masks, sizes)


def box_overlaps(boxes: Tensor, others: Tensor, crowd: Tensor, ranges: Tensor) -> Tensor:
    """Compute the IoU of each box with some of the other boxes, as pycocotools does.

    For a crowd, the denominator is the area of the box instead of the union.

    Args:
        boxes: float64 `[D, 4]`, (x, y, width, height).
        others: float64 `[G, 4]`, in the same format.
        crowd: bool `[G]`, True for crowds.
        ranges: int64 `[D, 2]` of (first, end): a box is compared with the others `first` to
            `end - 1`.

    Returns:
        float64 `[P]`, box by box.
    """
    return torch.ops.detlite.box_overlaps(boxes, others, crowd, ranges)


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

    The counts equal pycocotools' `merge` and `area`. Memory grows with the runs of the other masks
    and the results.

    Args:
        data: uint8 `[V]`, the concatenated strings of COCO's compressed run lengths of N masks.
        lengths: int64 `[N]`, the bytes of each string.
        pixels: int64 `[N]`, height x width of each mask, below 2^32.
        index: int64 `[D]`, the mask of each row, 0 to N - 1.
        other_data, other_lengths, other_pixels: G other masks in the same format.
        ranges: int64 `[D, 2]` of (first, end): the mask of a row is compared with the other masks
            of its image, `first` to `end - 1`.

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

    In each group (one image and category), detections are matched in the order of their scores.
    Each is matched to the free object with the highest overlap, if that reaches the threshold.
    Counted objects have priority over ignored ones, and crowds are always free.

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


def precision_recall(
    outcomes: Tensor,
    scores: Tensor,
    ranks: Tensor,
    ends: Tensor,
    positives: Tensor,
    limits: Tensor,
    recall_thresholds: Tensor,
    max_dets: int,
) -> tuple[Tensor, Tensor]:
    """Compute COCO's precision and recall (pycocotools' `COCOeval.accumulate`).

    Args:
        outcomes: uint8 `[A, T, D]` from `match_detections`, the detections category by category.
        scores: float64 `[D]`, not NaN.
        ranks: int64 `[D]`, rank by score within the image and category, from 0.
        ends: int64 `[K]`, the end of each category's detections.
        positives: int64 `[A, K]`, the number of counted objects.
        limits: int64 `[M]`, numbers of detections per image and category for the recall.
        recall_thresholds: float64 `[R]`, increasing.
        max_dets: the number of detections per image and category for the precision.

    Returns:
        precision: float64 `[T, R, K, A]`, the highest at each recall or a higher one.
        recall: float64 `[T, K, A, M]`. Both are -1 where there are no positives.
    """
    return torch.ops.detlite.precision_recall(
        outcomes, scores, ranks, ends, positives, limits, recall_thresholds, max_dets
    )


declare("encode_polygons", "evaluation.encode_polygons", "cpu")
declare("box_overlaps", "evaluation.box_overlaps", "cpu")
declare("mask_intersections", "evaluation.mask_intersections", "cpu")
declare("match_detections", "evaluation.match_detections", "cpu")
declare("precision_recall", "evaluation.precision_recall", "cpu")
