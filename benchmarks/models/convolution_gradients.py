"""Time of convolution gradients on a CPU: torch's method and detlite's alternative.

    python -m benchmarks.models.convolution_gradients

The first table compares grouped convolutions in bfloat16 and float32, in CPU time of one thread.
The second table compares weight gradients in float32 by oneDNN and by matrix products, in wall time
of all threads. Tensors are channels-last, and times are the minimum of several calls. The last
column is detlite's choice on this processor.
"""

import time
from typing import Any

import torch
from torch import Tensor, nn

from detlite.modeling.layers.conv import (
    CAPABILITY,
    CPUConv2d,
    slow_in_bfloat16,
    slow_in_float32,
    weight_gradient,
)

# channels, rows, columns, kernel, stride, channels per group
GROUPED = [
    (32, 256, 320, 3, 1, 1),
    (96, 256, 320, 3, 2, 1),
    (144, 128, 160, 5, 2, 1),
    (240, 64, 80, 5, 1, 1),
    (672, 32, 40, 5, 1, 1),
    (384, 32, 40, 7, 1, 1),
    (256, 64, 80, 3, 1, 8),
    (240, 64, 80, 3, 1, 16),
]

# images, channels, rows, columns
WIDE = [
    (1, 256, 200, 304),
    (1, 256, 100, 152),
    (1, 512, 25, 38),
    (4, 128, 128, 128),
    (4, 128, 64, 64),
    (4, 64, 128, 128),
    (256, 128, 14, 14),
    (4, 32, 128, 128),
]


def main() -> None:
    """Print both tables."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    print("| channels | map | kernel, stride | channels per group | bfloat16 | float32 | chosen |")
    print("|---|---|---|---|---|---|---|")
    for channels, rows, columns, kernel, stride, group in GROUPED:
        groups = channels // group
        conv = nn.Conv2d(channels, channels, kernel, stride, kernel // 2, groups=groups)
        in_float32: Any = CPUConv2d(conv)
        in_float32._use_float32 = True
        x = torch.rand(4, channels, rows, columns).contiguous(memory_format=torch.channels_last)
        times = [milliseconds(layer, x.bfloat16()) for layer in (conv, in_float32)]
        chosen = "float32" if slow_in_bfloat16(conv) else "bfloat16"
        print(
            f"| {channels} | {rows} x {columns} | {kernel} x {kernel}, {stride} | {group} | "
            f"{times[0]:.1f} | {times[1]:.1f} | {chosen} |"
        )
    torch.set_num_threads(threads)
    print(f"\n{CAPABILITY}, {threads} threads, float32, kernel 3 x 3; milliseconds, GFLOP/s\n")
    print("| images | channels | map | oneDNN | products | chosen |")
    print("|---|---|---|---|---|---|")
    for images, channels, rows, columns in WIDE:
        conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        x = torch.rand(images, channels, rows, columns)
        x = x.contiguous(memory_format=torch.channels_last)
        operations = 18 * channels * x.numel()
        cells = (
            f"{1000 * seconds:.0f}, {operations / seconds / 1e9:.0f}"
            for seconds in weight_gradient_seconds(conv, x)
        )
        chosen = "products" if slow_in_float32(conv) else "oneDNN"
        print(f"| {images} | {channels} | {rows} x {columns} | {' | '.join(cells)} | {chosen} |")


def milliseconds(conv: nn.Module, x: Tensor, calls: int = 4) -> float:
    """Return the minimum time of the backward pass in bfloat16."""
    x.requires_grad_()
    minimum = float("inf")
    for _ in range(calls):
        with torch.autocast("cpu", torch.bfloat16):
            y = conv(x)
        gradient = torch.rand_like(y)
        start = time.process_time()
        y.backward(gradient)
        minimum = min(minimum, time.process_time() - start)
    return 1000 * minimum


def weight_gradient_seconds(conv: nn.Conv2d, x: Tensor, calls: int = 5) -> list[float]:
    """Return the minimum time of a weight gradient by oneDNN and by matrix products."""
    gradient = torch.rand_like(conv(x).detach())
    only_weight = [False, True, False]

    def by_onednn() -> Tensor:
        return torch.ops.aten.convolution_backward(
            gradient,
            x,
            conv.weight.detach(),
            None,
            (1, 1),
            (1, 1),
            (1, 1),
            False,
            [0, 0],
            1,
            only_weight,
        )[1]

    def by_matmuls() -> Tensor:
        return weight_gradient(gradient, x, (3, 3), (1, 1), (1, 1))

    minimum = [float("inf")] * 2
    for _ in range(calls):
        for i, method in enumerate((by_onednn, by_matmuls)):
            start = time.perf_counter()
            method()
            minimum[i] = min(minimum[i], time.perf_counter() - start)
    return minimum


if __name__ == "__main__":
    main()
