"""Argument checks of the fallbacks, with the messages of csrc/common/tensors.h."""

from collections.abc import Sequence

import torch
from torch import Tensor

FLOATING, INTEGERS = "floating point", "integers"
_TYPES = {
    FLOATING: (torch.float64, torch.float32, torch.float16, torch.bfloat16),
    INTEGERS: (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
}


def check(ok: bool, message: str) -> None:
    """Raise RuntimeError with the message unless `ok`."""
    if not ok:
        raise RuntimeError(message)


def check_tensors(
    op: str, **tensors: tuple[Tensor, Sequence[int | str], torch.dtype | str]
) -> None:
    """Check the shape, type and device of each tensor.

    Args:
        op: the name of the operator.
        **tensors: by name, each with its expected shape, in which a letter means any size, and
            its type or FLOATING or INTEGERS. All must be on the device of the first.
    """
    first = next(iter(tensors))
    for name, (x, shape, kind) in tensors.items():
        pairs = zip(shape, x.shape, strict=False)
        check(
            x.dim() == len(shape) and all(isinstance(a, str) or a == b for a, b in pairs),
            f"{op}: {name} must have shape [{', '.join(map(str, shape))}], got {list(x.shape)}",
        )
        expected, actual = (str(dtype).removeprefix("torch.") for dtype in (kind, x.dtype))
        allowed = _TYPES[kind] if isinstance(kind, str) else (kind,)
        check(x.dtype in allowed, f"{op}: {name} must be {expected}, got {actual}")
        same = x.device == tensors[first][0].device
        check(same, f"{op}: {name} must be on the device of {first}")
