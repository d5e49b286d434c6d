"""Argument checks of the fallback operators, with the messages of csrc/common/checks.h."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad

_MAX_LEVELS = 8
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def check(ok: bool, message: str) -> None:
    """Raise RuntimeError with the message unless `ok`."""
    if not ok:
        raise RuntimeError(message)


def check_no_tangent(op: str, *inputs: Tensor) -> None:
    """Check that no input has a tangent of forward-mode AD, which the operators would drop."""
    check(
        all(forward_ad.unpack_dual(x).tangent is None for x in inputs),
        f"{op} has no derivative in forward mode (torch.func.jvp, jacfwd, torch.autograd."
        "forward_ad): use reverse mode, such as torch.autograd.grad or torch.autograd.functional",
    )


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the type of sums and coordinates: float32, or float64 for such features."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def check_shape(op: str, name: str, tensor: Tensor, shape: Sequence[int], why: str = "") -> None:
    """Check the shape; `why` follows the expected shape in the message."""
    actual, expected = list(tensor.shape), list(shape)
    check(actual == expected, f"{op}: {name} must have shape {expected}{why}, got {actual}")


def check_dtype(op: str, name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    """Check the type of a tensor."""
    check(
        tensor.dtype == dtype,
        f"{op}: {name} must be {_name(dtype)}, got {_name(tensor.dtype)}",
    )


def check_integers(op: str, name: str, tensor: Tensor) -> None:
    """Check that a tensor is int64, int32, int16, int8 or uint8."""
    check(
        tensor.dtype in _INTEGERS,
        f"{op}: {name} must be integers, got {_name(tensor.dtype)}",
    )


def check_floating(op: str, name: str, tensor: Tensor) -> None:
    """Check that a tensor is float64, float32, float16 or bfloat16."""
    check(
        tensor.is_floating_point() and tensor.element_size() > 1,
        f"{op}: {name} must be floating point, got {_name(tensor.dtype)}",
    )


def check_same_device(op: str, first: Tensor, **others: Tensor) -> None:
    """Check that all tensors are on the device of the first."""
    for name, tensor in others.items():
        check(
            tensor.device == first.device,
            f"{op}: {name} is on {tensor.device} and must be on {first.device}",
        )


def check_maps(op: str, maps: Sequence[Tensor], scales: Sequence[float]) -> None:
    """Check that maps form a pyramid with one scale each."""
    check_scales(op, scales)
    check(
        len(maps) == len(scales),
        f"{op}: inputs must have one map for each of {len(scales)} spatial_scales, got {len(maps)}",
    )
    for level, features in enumerate(maps):
        check(
            features.dim() == 4,
            f"{op}: input must have 4 dimensions, got shape {list(features.shape)}",
        )
        check_floating(op, "input", features)
        check(
            features.dtype == maps[0].dtype and features.shape[:2] == maps[0].shape[:2],
            f"{op}: inputs[{level}] must have the type, batch size and channels of inputs[0]",
        )
        check_same_device(op, maps[0], input=features)


def check_scales(op: str, scales: Sequence[float]) -> None:
    """Check the number of scales and their values."""
    check(
        1 <= len(scales) <= _MAX_LEVELS,
        f"{op}: spatial_scales must have from 1 to {_MAX_LEVELS} levels, got {len(scales)}",
    )
    for scale in scales:
        check(
            math.isfinite(scale) and scale > 0,
            f"{op}: spatial_scale must be a positive number, got {scale}",
        )


def check_rois(op: str, features: Tensor, rois: Tensor, levels: Tensor) -> None:
    """Check the shape, type and device of RoIs and their levels."""
    check(
        rois.dim() == 2 and rois.shape[1] == 5,
        f"{op}: rois must have shape [K, 5] (batch index, x1, y1, x2, y2), got {list(rois.shape)}",
    )
    expected = wide(features.dtype)
    check(
        rois.dtype == expected,
        f"{op}: rois must be {_name(expected)} for {_name(features.dtype)} features, "
        f"got {_name(rois.dtype)}",
    )
    check_shape(op, "levels", levels, [len(rois)])
    check_dtype(op, "levels", levels, torch.int64)
    check_same_device(op, features, rois=rois, levels=levels)


def check_pool(op: str, height: int, width: int) -> None:
    """Check that the pooled size is at least 1 x 1."""
    check(
        height >= 1 and width >= 1,
        f"{op}: pooled_height and pooled_width must be at least 1, got {height} and {width}",
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
