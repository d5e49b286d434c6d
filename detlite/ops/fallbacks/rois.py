"""The RoIs of each level of a pyramid, for the fallbacks of RoIAlign and RoIPool."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from detlite.ops.dispatch import compute_dtype

from .checks import FLOATING, check, check_tensors

_MAX_LEVELS = 8


def rois_by_level(
    op: str,
    maps: Sequence[Tensor],
    rois: Tensor,
    levels: Tensor,
    scales: Sequence[float],
    pool: tuple[int, int],
) -> list[tuple[int, float, Tensor]]:
    """Return each level that has RoIs, its scale, and the indices int64 `[k]` of its RoIs.

    Padding, boxes with a NaN or infinite coordinate or side, and levels with an empty map are
    skipped, because they pool to zeros. Waits for the device.

    Raises:
        RuntimeError: an argument is invalid, or a RoI refers to an image or level that does not
            exist.
    """
    shape = [*maps[0].shape[:2], "H", "W"]
    check_tensors(
        op,
        **{f"inputs[{k}]": (x, shape, FLOATING) for k, x in enumerate(maps)},
        rois=(rois, ["K", 5], compute_dtype(maps[0].dtype)),
        levels=(levels, [len(rois)], torch.int64),
    )
    check(len({x.dtype for x in maps}) == 1, f"{op}: inputs must have the same type")
    check(min(pool) >= 1, f"{op}: pooled_height and pooled_width must be at least 1, got {pool}")
    check(
        len(maps) == len(scales) <= _MAX_LEVELS and all(0 < scale < math.inf for scale in scales),
        f"{op}: spatial_scales must be a positive number for each of at most {_MAX_LEVELS} maps, "
        f"got {list(scales)} for {len(maps)} maps",
    )
    image, images = rois[:, 0], len(maps[0])
    used = image != -1  # padding may have any level
    for name, index, count in (("rois[:, 0]", image, images), ("levels", levels, len(maps))):
        wrong = index[used & ~((index >= 0) & (index < count))].tolist()
        check(not wrong, f"{op}: {name} must be from 0 to {count - 1}, got {wrong[:1]}")
    groups = []
    for level, (scale, features) in enumerate(zip(scales, maps, strict=True)):
        low, high = rois[:, 1:3] * scale, rois[:, 3:] * scale
        finite = (low.isfinite() & (high - low).isfinite()).all(dim=1)
        index = (used & finite & (levels == level)).nonzero()[:, 0]
        if len(index) and features.shape[2] and features.shape[3]:
            groups.append((level, scale, index))
    return groups
