"""Group RoIs by pyramid level, for torchvision's operators, which pool from one map."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from .checks import check


def rois_by_level(
    op: str,
    rois: Tensor,
    levels: Tensor,
    scales: Sequence[float],
    shapes: Sequence[tuple[int, int, int]],
) -> Iterator[tuple[int, Tensor]]:
    """Yield each level that has RoIs, with the indices int64 `[k]` of its RoIs.

    Padding, boxes with a NaN or infinite coordinate or side, and levels with an empty map are left
    out: they pool to zeros. Waits for the device.

    Args:
        op: the operator's name, for error messages.
        rois, levels: `[K, 5]` and `[K]`.
        scales: 1 / stride of each level.
        shapes: (batch size, height, width) of each map.

    Raises:
        RuntimeError: a RoI names an image or a level that does not exist.
    """
    batch_size = shapes[0][0]
    image = rois[:, 0]
    used = image != -1  # padding may have any level
    _check_all(
        ~used | ((image >= 0) & (image < batch_size)),
        lambda k: f"{op}: rois[{k}, 0] is not an index of a batch of {batch_size} images",
    )
    _check_all(
        ~used | ((levels >= 0) & (levels < len(shapes))),
        lambda k: f"{op}: levels[{k}] is {int(levels[k])}, but there are {len(shapes)} maps",
    )
    for level, (scale, (_, height, width)) in enumerate(zip(scales, shapes, strict=True)):
        low, high = rois[:, 1:3] * scale, rois[:, 3:] * scale
        finite = (low.isfinite() & (high - low).isfinite()).all(dim=1)
        index = (used & finite & (levels == level)).nonzero()[:, 0]
        if len(index) and height and width:
            yield level, index


def _check_all(valid: Tensor, message: Callable[[int], str]) -> None:
    if not valid.all():
        check(False, message(int((~valid).nonzero()[0, 0])))
