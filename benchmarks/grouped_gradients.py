"""CPU time of the gradients of convolutions of few channels a group, in bfloat16 and in float32.

    python benchmarks/grouped_gradients.py

One thread, four images, channels-last, the least of some calls by `time.process_time`: other work
on the machine changes little. `chosen` is what detlite's bodies do in bfloat16.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

from detlite.modeling.backbone.grouped import GroupedConv2d, slow_in_bfloat16

# channels, rows, columns, kernel, stride, channels of a group
SHAPES = [
    (32, 256, 320, 3, 1, 1),
    (96, 256, 320, 3, 2, 1),
    (144, 128, 160, 5, 2, 1),
    (240, 64, 80, 5, 1, 1),
    (672, 32, 40, 5, 1, 1),
    (384, 32, 40, 7, 1, 1),
    (256, 64, 80, 3, 1, 8),
    (240, 64, 80, 3, 1, 16),
]


def main() -> None:
    torch.set_num_threads(1)
    print("| channels | map | kernel, stride | channels a group | bfloat16 | float32 | chosen |")
    print("|---|---|---|---|---|---|---|")
    for channels, rows, columns, kernel, stride, own in SHAPES:
        groups = channels // own
        conv = nn.Conv2d(channels, channels, kernel, stride, kernel // 2, groups=groups)
        in_float = GroupedConv2d(conv)
        in_float._float_gradients = True
        x = torch.rand(4, channels, rows, columns).contiguous(memory_format=torch.channels_last)
        times = [milliseconds(layer, x.bfloat16()) for layer in (conv, in_float)]
        chosen = "float32" if slow_in_bfloat16(conv) else "bfloat16"
        print(
            f"| {channels} | {rows} x {columns} | {kernel} x {kernel}, {stride} | {own} | "
            f"{times[0]:.1f} | {times[1]:.1f} | {chosen} |"
        )


def milliseconds(conv: nn.Module, x: Tensor, calls: int = 4) -> float:
    """Of the backward pass alone."""
    x.requires_grad_()
    least = float("inf")
    for _ in range(calls):
        with torch.autocast("cpu", torch.bfloat16):
            y = conv(x)
        gradient = torch.rand_like(y)
        start = time.process_time()
        y.backward(gradient)
        least = min(least, time.process_time() - start)
    return 1000 * least


if __name__ == "__main__":
    main()
