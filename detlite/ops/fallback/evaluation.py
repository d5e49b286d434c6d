"""The counts of COCO evaluation, in pycocotools and NumPy."""

from itertools import pairwise

import numpy as np
import torch
from pycocotools import mask as rle_codec
from torch import Tensor

from detlite.structures.masks.rle import run_lengths

from .checks import check, check_shape


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
    """Implement `mask_intersections`."""
    op = "mask_intersections"
    masks = _decode(op, "masks", data, lengths, pixels)
    others = _decode(op, "others", other_data, other_lengths, other_pixels)
    _check_vector(op, "index", index, torch.int64)
    check(
        ranges.dtype == torch.int64 and list(ranges.shape) == [len(index), 2],
        f"{op}: ranges must be int64 [{len(index)}, 2], got {_describe(ranges)}",
    )
    mask_areas, other_areas = _areas(masks), _areas(others)
    shared: list[np.ndarray] = []
    for mask, (first, last) in zip(index.tolist(), ranges.tolist(), strict=True):
        check(
            0 <= mask < len(masks),
            f"{op}: index must be from 0 to {len(masks) - 1}, got {mask}",
        )
        check(
            0 <= first <= last <= len(others),
            f"{op}: ranges must lie within {len(others)} others, got {first} to {last}",
        )
        shared.append(_intersections(masks[mask], mask_areas[mask], others[first:last]))
    return (
        torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *shared])),
        torch.from_numpy(mask_areas[index.numpy()]),
        torch.from_numpy(other_areas),
    )


def _decode(
    op: str, name: str, data: Tensor, lengths: Tensor, pixels: Tensor
) -> list[dict[str, object] | None]:
    """Return the masks as RLEs of one column; None for a text that does not cover its pixels."""
    _check_vector(op, name, data, torch.uint8)
    for tensor in (lengths, pixels):
        check(
            tensor.dtype == torch.int64 and tensor.shape == lengths.shape and tensor.dim() == 1,
            f"{op}: lengths and pixels of {name} must be int64 of one size, "
            f"got {_describe(tensor)}",
        )
    check(
        bool((lengths >= 0).all()) and int(lengths.sum()) == len(data),
        f"{op}: lengths of {name} must be of texts that make up its {len(data)} bytes",
    )
    text, ends = data.numpy().tobytes(), np.cumsum([0, *lengths.tolist()]).tolist()
    masks: list[dict[str, object] | None] = []
    for (begin, end), count in zip(pairwise(ends), pixels.tolist(), strict=True):
        check(
            0 <= count < 1 << 32,
            f"{op}: pixels of {name} must be from 0 to 2^32 - 1, got {count}",
        )
        try:
            runs = run_lengths(text[begin:end])
        except ValueError:
            runs = np.array([-1])
        covered = (runs >= 0).all() and runs.sum() == count
        masks.append({"size": [count, 1], "counts": text[begin:end]} if covered else None)
    return masks


def _areas(masks: list[dict[str, object] | None]) -> np.ndarray:
    return np.array([-1 if mask is None else int(rle_codec.area(mask)) for mask in masks], np.int64)


def _intersections(
    mask: dict[str, object] | None, area: int, others: list[dict[str, object] | None]
) -> np.ndarray:
    """Return the pixels that a mask shares with each of others, int64 [len(others)]."""
    shared = np.zeros(len(others), np.int64)
    valid = [place for place, other in enumerate(others) if other is not None]
    if area > 0 and valid:
        # The IoU with a crowd is the intersection divided by the mask's own area.
        ious = rle_codec.iou([mask], [others[place] for place in valid], [1] * len(valid))
        shared[valid] = np.rint(ious[0] * area).astype(np.int64)
    return shared


def match_detections(
    overlaps: Tensor,
    groups: Tensor,
    crowd: Tensor,
    ignored: Tensor,
    uncounted: Tensor,
    thresholds: Tensor,
) -> Tensor:
    """Implement `match_detections`."""
    _check_matching(overlaps, groups, crowd, ignored, uncounted, thresholds)
    sets, detections = uncounted.shape
    outcomes = np.zeros((sets, len(thresholds), detections), np.uint8)
    tables, least = overlaps.numpy(), thresholds.numpy().clip(max=1 - 1e-10)[:, None]
    is_crowd, is_ignored, is_uncounted = crowd.numpy(), ignored.numpy(), uncounted.numpy()
    place = 0
    for first, last, low, high in groups.tolist():
        table = tables[place : place + (last - first) * (high - low)].reshape(last - first, -1)
        place += table.size
        for area in range(sets):
            own_ignored = is_ignored[area, low:high]
            taken = np.zeros((len(least), high - low), bool)
            for detection, row in enumerate(table, start=first):
                free = (row >= least) & (~taken | is_crowd[low:high])
                counted = free & ~own_ignored
                # An object that counts goes first; of equal overlaps the last one wins.
                options = np.where(counted.any(axis=1, keepdims=True), counted, free)
                values = np.where(options, row, -1.0)[:, ::-1]
                best = high - low - 1 - values.argmax(axis=1) if high > low else None
                outcome = np.full(len(least), 2 * is_uncounted[area, detection], np.uint8)
                if best is not None:
                    (hit,) = options.any(axis=1).nonzero()
                    taken[hit, best[hit]] = True
                    outcome[hit] = 1 + own_ignored[best[hit]]
                outcomes[area, :, detection] = outcome
    return torch.from_numpy(outcomes)


def _check_matching(*arguments: Tensor) -> None:
    op = "match_detections"
    overlaps, groups, crowd, ignored, uncounted, _ = arguments
    expected = (
        ("overlaps", 1, torch.float64),
        ("groups", 2, torch.int64),
        ("crowd", 1, torch.bool),
        ("ignored", 2, torch.bool),
        ("uncounted", 2, torch.bool),
        ("thresholds", 1, torch.float64),
    )
    for (name, dims, dtype), tensor in zip(expected, arguments, strict=True):
        check(
            tensor.dim() == dims and tensor.dtype == dtype,
            f"{op}: {name} must be {str(dtype).removeprefix('torch.')} of {dims} dimensions, "
            f"got {_describe(tensor)}",
        )
    objects, detections = len(crowd), uncounted.shape[1]
    check(groups.shape[1] == 4, f"{op}: groups must have shape [Q, 4], got {list(groups.shape)}")
    check_shape(op, "ignored", ignored, [len(ignored), objects], ", a column for each of crowd")
    check(
        len(uncounted) == len(ignored),
        f"{op}: uncounted must have shape [{len(ignored)}, D], a row for each of ignored, "
        f"got {list(uncounted.shape)}",
    )
    reached = pairs = 0
    for first, last, low, high in groups.tolist():
        check(
            first == reached and first <= last <= detections,
            f"{op}: groups must follow each other over {detections} detections, "
            f"got {first} to {last}",
        )
        check(
            0 <= low <= high <= objects,
            f"{op}: groups must lie within {objects} objects, got {low} to {high}",
        )
        reached = last
        pairs += (last - first) * (high - low)
    check(
        reached == detections,
        f"{op}: groups must follow each other over {detections} detections, got {reached}",
    )
    check_shape(op, "overlaps", overlaps, [pairs], ", one for each detection and object of a group")


def _check_vector(op: str, name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    check(
        tensor.dim() == 1 and tensor.dtype == dtype,
        f"{op}: {name} must be {str(dtype).removeprefix('torch.')} of one dimension, "
        f"got {_describe(tensor)}",
    )


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
