"""Takes each barrier of csrc/cuda out, one at a time, and requires that a case shows it.

    CUDA_ON_CPU_SKIP=file:line makes the threads of the stand-in pass a barrier without waiting. Then
    in one of several random orders some case must give another result, an error or a crash: else the
    barrier is needless, or the cases are weak. A case without a barrier missing must give the same
    in every order.

Add a case as a function that returns tensors and is decorated with `case`; make it small, since it
runs some dozen times for every barrier that it reaches, and large enough that threads and warps have
different things to do, and go around their loops twice. It runs on the CPU, in a copy of the package
whose CPU kernels are the CUDA ones (test_cuda_on_cpu.py).
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor

from detlite import _C, ops

Case = Callable[[], Iterable[Tensor]]
CASES: list[Case] = []
SEEDS = range(1, 9)
SECONDS = 20  # for one barrier; a kernel that goes on for ever shows it too


def case(function: Case) -> Case:
    CASES.append(function)
    return function


# ---- Cases


def boxes(*shape: int, extent: float = 60.0) -> Tensor:
    corner = torch.rand(*shape, 2) * extent
    return torch.cat([corner, corner + torch.rand(*shape, 2) * 30], -1)


def rois(count: int, images: int) -> Tensor:
    index = torch.randint(-1, images, (count, 1)).float()
    return torch.cat([index, boxes(count)], 1)


@case
def nms() -> Iterable[Tensor]:
    return [ops.nms(boxes(300), torch.rand(300), 0.3)]


@case
def batched_nms() -> Iterable[Tensor]:
    return [ops.batched_nms(boxes(400), torch.rand(400), torch.randint(0, 3, (400,)), 0.4)]


@case
def padded_nms() -> Iterable[Tensor]:
    groups, valid = torch.randint(0, 3, (2, 300)), torch.rand(2, 300) > 0.1
    return ops.padded_nms(boxes(2, 300), torch.rand(2, 300), groups, valid, 0.5, 100)


@case
def match_boxes() -> Iterable[Tensor]:
    truth, candidates = boxes(2, 600, extent=200.0), boxes(2, 300, extent=200.0)
    return ops.match_boxes(truth, torch.rand(2, 600) > 0.1, candidates)


@case
def roi_align() -> Iterable[Tensor]:
    maps = torch.randn(2, 9, 15, 16, requires_grad=True)
    pooled = ops.roi_align(maps, rois(300, 2), 3, 0.25, 2)
    return [pooled, *torch.autograd.grad(pooled, maps, torch.randn_like(pooled))]


@case
def roi_align_channels_last() -> Iterable[Tensor]:
    maps = torch.randn(2, 16, 15, 16).contiguous(memory_format=torch.channels_last)
    maps.requires_grad_()
    pooled = ops.roi_align(maps, rois(150, 2), (2, 3), 0.25, 0, True)
    return [pooled, *torch.autograd.grad(pooled, maps, torch.randn_like(pooled))]


@case
def pyramid_roi_align() -> Iterable[Tensor]:
    maps = [torch.randn(2, 5, 16 >> i, 16 >> i, requires_grad=True) for i in range(2)]
    pooled = ops.pyramid_roi_align(maps, [boxes(90), boxes(100)], 2, [0.25, 0.125], 2)
    return [pooled, *torch.autograd.grad(pooled, maps, torch.randn_like(pooled))]


@case
def roi_pool() -> Iterable[Tensor]:
    maps = torch.randn(2, 9, 15, 16, requires_grad=True)
    pooled = ops.roi_pool(maps, rois(300, 2), 3, 0.25)
    return [pooled, *torch.autograd.grad(pooled, maps, torch.randn_like(pooled))]


@case
def focal_loss() -> Iterable[Tensor]:
    logits = torch.randn(700, requires_grad=True)
    targets = (torch.rand(700) > 0.9).float()
    loss = ops.sigmoid_focal_loss(logits, targets, 0.25, 2.0, "sum")
    return [loss, *torch.autograd.grad(loss, logits)]


@case
def heatmap_peaks() -> Iterable[Tensor]:
    maps = torch.randn(4, 3, 20, 20)
    maps[0, 1, 19, 19] = torch.nan
    return ops.heatmap_peaks(maps, boxes(4))


@case
def crop_masks() -> Iterable[Tensor]:
    corners, polygons = 300, 3
    angles = torch.linspace(0, 6, corners)
    radii = 40 * torch.rand(polygons, corners, 1) + 5
    xy = 50 + radii * torch.stack([angles.cos(), angles.sin()], 1)
    pieces = 2 * corners * torch.arange(polygons + 1)
    instances, frames = torch.tensor([0, polygons]), torch.zeros(1, 6, dtype=torch.int64)
    around, index = torch.tensor([[5.0, 0, 90, 100]]), torch.tensor([0])
    return [ops.crop_masks(xy.double().view(-1), pieces, instances, frames, index, around, 70, False)]


# ---- The experiment


def barriers() -> list[str]:
    """As "file:line", of all sources."""
    found = []
    for path in sorted((Path(__file__).parents[3] / "csrc" / "cuda").iterdir()):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code = line.partition("//")[0]
            if re.search(r"\b__sync(threads|threads_or|threads_and|threads_count|warp)\(", code):
                found.append(f"{path.name}:{number}")
    return found


def result(run: Case, seed: int) -> list[Tensor]:
    os.environ["CUDA_ON_CPU_SEED"] = str(seed)
    torch.manual_seed(0)
    return [tensor.detach() for tensor in run()]


def equal(some: list[Tensor], others: list[Tensor]) -> bool:
    """To the last bit; NaNs are equal."""
    pairs = zip(some, others, strict=True)
    return all(torch.allclose(a, b, 0, 0, equal_nan=True) and a.shape == b.shape for a, b in pairs)


def shows(barrier: str, expected: dict[Case, list[Tensor]]) -> bool:
    """Whether some result is another without the barrier. In a process of its own, which may die."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] != 0
    signal.alarm(SECONDS)
    os.environ["CUDA_ON_CPU_SKIP"] = barrier
    status = 0
    try:
        differs = (not equal(result(run, s), expected[run]) for s in SEEDS for run in expected)
        status = int(any(differs))
    except Exception:
        status = 1
    os._exit(status)


def main() -> int:
    torch.set_num_threads(1)
    reached = ctypes.CDLL(_C.__file__).cuda_on_cpu_reached
    reached.restype = ctypes.c_char_p
    reached()
    expected: dict[Case, list[Tensor]] = {}
    places: dict[Case, set[str]] = {}
    wrong = []
    for run in CASES:
        expected[run] = result(run, 0)
        places[run] = set(reached().decode().split())
        if not all(equal(result(run, seed), expected[run]) for seed in SEEDS):
            wrong.append(f"{run.__name__}: the result depends on the order of threads or blocks")
    for barrier in barriers():
        chosen = {run: tensors for run, tensors in expected.items() if barrier in places[run]}
        if not chosen:
            wrong.append(f"{barrier}: no case reaches this barrier")
        elif not shows(barrier, chosen):
            wrong.append(f"{barrier}: no case shows it when this barrier is missing")
    print("\n".join(wrong) or f"{len(barriers())} barriers, each is needed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
