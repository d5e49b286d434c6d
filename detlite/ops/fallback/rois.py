"""Group RoIs by pyramid level, for torchvision's operators, which pool from one map."""

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from detlite.ops.roi_utils import empty_pooled, memory_format

from .checks import check, check_maps, check_pool, check_rois, check_scales, check_shape, wide

Shapes = list[tuple[int, int, int]]  # (batch size, height, width) of each map


def begin_forward(
    op: str,
    inputs: Sequence[Tensor],
    rois: Tensor,
    levels: Tensor,
    scales: Sequence[float],
    pool: tuple[int, int],
) -> tuple[Tensor, Shapes]:
    """Check the arguments of pooling to (height, width), and return zeros for the result."""
    check_pool(op, *pool)
    check_maps(op, inputs, scales)
    check_rois(op, inputs[0], rois, levels)
    output = empty_pooled(inputs, (len(rois), inputs[0].shape[1], *pool)).zero_()
    return output, [(len(x), x.shape[2], x.shape[3]) for x in inputs]


def begin_backward(
    op: str,
    grad: Tensor,
    rois: Tensor,
    levels: Tensor,
    scales: Sequence[float],
    pool: tuple[int, int],
    sizes: tuple[int, int, Sequence[int], Sequence[int]],
) -> tuple[list[Tensor], Shapes]:
    """Check the arguments of the gradient, and return zeros for the gradients of the maps.

    `sizes` are the batch size, channels, heights and widths.
    """
    batch_size, channels, heights, widths = sizes
    check_pool(op, *pool)
    check_scales(op, scales)
    check_rois(op, grad, rois, levels)
    check_shape(op, "grad", grad, [len(rois), channels, *pool])
    shapes = [(batch_size, *size) for size in zip(heights, widths, strict=True)]
    dtype = wide(grad.dtype)
    zeros = [grad.new_zeros((batch_size, channels, *shape[1:]), dtype=dtype) for shape in shapes]
    return zeros, shapes


def as_gradients(grads: Sequence[Tensor], grad: Tensor) -> list[Tensor]:
    """Convert gradients of maps to the type and memory format of the pooled gradient."""
    layout = memory_format([grad])
    return [x.to(grad.dtype).contiguous(memory_format=layout) for x in grads]


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
