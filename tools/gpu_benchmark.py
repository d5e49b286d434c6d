"""Times the operators on a GPU beside torchvision's, by CUDA events.

    python tools/gpu_benchmark.py --json gpu.json

Each time is the median of many calls, and before each call memory that is larger than the GPU's L2
cache is written, so that nothing is read from there but by chance. Backward passes are timed alone.
detlite and torchvision get the same boxes and maps; `_cl` in a name says that detlite's maps are
channels-last, while torchvision's are always contiguous, which it likes best. Without torchvision
its column stays empty. `python -m benchmarks ops` has the wall times and more operators.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu_steps import ops
from torch import Tensor

torchvision: Any = None
if importlib.util.find_spec("torchvision") is not None:
    torchvision = importlib.import_module("torchvision")

Run = Callable[[], object]
Pair = tuple[str, Run, Run | None]  # detlite's call and, where there is one, torchvision's
STRIDES = (4, 8, 16, 32)
FLUSHED_BYTES = 512 << 20


class Clock:
    """Milliseconds of a call on a device."""

    def __init__(self, device: str, calls: int) -> None:
        self.device, self.calls = device, calls
        size = FLUSHED_BYTES if device == "cuda" else 1
        self.flushed = torch.empty(size, dtype=torch.uint8, device=device)

    def __call__(self, run: Run) -> float:
        for _ in range(3):
            run()
        times = [self._once(run) for _ in range(self.calls)]
        if self.device == "cuda":
            torch.cuda.synchronize()
        return statistics.median(time_of() for time_of in times)

    def _once(self, run: Run) -> Callable[[], float]:
        self.flushed.zero_()
        if self.device != "cuda":
            start = time.perf_counter()
            run()
            taken = 1e3 * (time.perf_counter() - start)
            return lambda: taken
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        return lambda: begin.elapsed_time(end)


class Inputs:
    """Random inputs of a detector's sizes on 800 x 1216 pixels, or of a tenth where small."""

    def __init__(self, device: str, small: bool) -> None:
        self.device, self.part = device, 10 if small else 1
        self.height, self.width = 800 // self.part, 1216 // self.part
        self.channels = 256 // self.part

    def maps(self, images: int, strides: tuple[int, ...] = STRIDES) -> list[Tensor]:
        shapes = [(images, self.channels, self.height // s, self.width // s) for s in strides]
        return [torch.randn(shape, device=self.device).requires_grad_() for shape in shapes]

    def boxes(self, count: int, least: float, most: float) -> Tensor:
        count //= self.part
        extent = torch.tensor([self.width, self.height])
        sides = least * (most / least) ** torch.rand(count, 2) / self.part
        corner = torch.rand(count, 2) * (extent - sides).clamp(min=0)
        return torch.cat([corner, corner + sides], 1).to(self.device)

    def clustered(self, count: int, objects: int) -> Tensor:
        around = self.boxes(objects * self.part, 60, 300)
        which = torch.randint(0, len(around), (count // self.part,), device=self.device)
        return around[which] + torch.randn(len(which), 4, device=self.device) * 8 / self.part


def gradients(
    name: str, ours: Run, theirs: Run | None, wanted: list[Tensor], own: list[Tensor]
) -> Iterator[Pair]:
    """The forward passes, and the backward passes alone; `wanted` are torchvision's maps."""
    yield name, ours, theirs

    def backward(run: Run, maps: list[Tensor]) -> Run:
        pooled: Any = run()
        grad = torch.randn_like(pooled)
        return lambda: torch.autograd.grad(pooled, maps, grad, retain_graph=True)

    yield f"{name}_backward", backward(ours, own), theirs and backward(theirs, wanted)


def last(maps: list[Tensor]) -> list[Tensor]:
    channels_last = torch.channels_last
    return [x.detach().contiguous(memory_format=channels_last).requires_grad_() for x in maps]


def roi_cases(make: Inputs) -> Iterator[Pair]:
    maps = make.maps(1, STRIDES[:1])
    boxes = make.boxes(1000, 12, 112)
    rois = torch.cat([boxes.new_zeros(len(boxes), 1), boxes], 1)
    align = (rois, 7, 0.25, 2)
    for suffix, own in (("", maps), ("_cl", last(maps))):
        yield from gradients(
            f"roi_align_7_s2{suffix}",
            partial(ops.roi_align, own[0], *align),
            torchvision and (lambda: torchvision.ops.roi_align(maps[0], *align)),
            maps,
            own,
        )
        yield from gradients(
            f"roi_pool_7{suffix}",
            partial(ops.roi_pool, own[0], rois, 7, 0.25),
            torchvision and (lambda: torchvision.ops.roi_pool(maps[0], rois, 7, 0.25)),
            maps,
            own,
        )


def pyramid_cases(make: Inputs) -> Iterator[Pair]:
    images = 16 if make.part == 1 else 2
    maps = make.maps(images)
    boxes = [make.boxes(512, 16, 800) for _ in range(images)]
    scales = [1 / s for s in STRIDES]
    reference = None
    if torchvision:
        named = OrderedDict((str(i), x) for i, x in enumerate(maps))
        pooler = torchvision.ops.MultiScaleRoIAlign(list(named), 7, 2)
        sizes = [(make.height, make.width)] * images
        reference = lambda: pooler(named, boxes, sizes)  # noqa: E731
    for suffix, own in (("", maps), ("_cl", last(maps))):
        yield from gradients(
            f"pyramid_16x512{suffix}",
            partial(ops.pyramid_roi_align, own, boxes, 7, scales, 2),
            reference,
            maps,
            own,
        )


def box_cases(make: Inputs) -> Iterator[Pair]:
    for name, boxes in (
        ("nms_12k_spread", make.boxes(12_000, 20, 300)),
        ("nms_12k_clustered", make.clustered(12_000, 30)),
    ):
        given = (boxes, torch.rand(len(boxes), device=make.device), 0.7)
        yield (
            name,
            partial(ops.nms, *given),
            torchvision and partial(torchvision.ops.nms, *given),
        )
    boxes = make.boxes(4000, 20, 300)
    scores = torch.rand(len(boxes), device=make.device)
    groups = torch.randint(0, 80, (len(boxes),), device=make.device)
    yield (
        "batched_nms_4k_80",
        lambda: ops.batched_nms(boxes, scores, groups, 0.5),
        torchvision and (lambda: torchvision.ops.batched_nms(boxes, scores, groups, 0.5)),
    )
    candidates, truth = make.boxes(243_000, 32, 512), make.boxes(100, 30, 300)
    valid = torch.ones(1, len(truth), dtype=torch.bool, device=make.device)
    matcher = None
    if torchvision:
        from torchvision.models.detection._utils import Matcher

        match = Matcher(0.7, 0.3, allow_low_quality_matches=True)
        matcher = lambda: match(torchvision.ops.box_iou(truth, candidates))  # noqa: E731
    yield "match_243k_100", lambda: ops.match_boxes(truth[None], valid, candidates), matcher


def loss_cases(make: Inputs) -> Iterator[Pair]:
    logits = torch.randn(200_000 // make.part, 80, device=make.device, requires_grad=True)
    targets = (torch.rand_like(logits) > 0.99).float()
    arguments = (logits, targets, 0.25, 2.0, "sum")
    yield from gradients(
        "focal_loss_16m",
        lambda: ops.sigmoid_focal_loss(*arguments),
        torchvision and (lambda: torchvision.ops.sigmoid_focal_loss(*arguments)),
        [logits],
        [logits],
    )


def measure(device: str, calls: int, small: bool) -> Iterator[dict[str, Any]]:
    clock, make = Clock(device, calls), Inputs(device, small)
    for group in (roi_cases, pyramid_cases, box_cases, loss_cases):
        torch.manual_seed(0)
        try:
            for name, ours, theirs in group(make):
                own = clock(ours)
                other = clock(theirs) if theirs else None
                ratio = other / own if other else None
                yield {"case": name, "detlite_ms": own, "torchvision_ms": other, "ratio": ratio}
        except torch.cuda.OutOfMemoryError:
            yield {"case": f"{group.__name__}: the GPU's memory is too small for the rest"}


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = ["| case | detlite ms | torchvision ms | ratio |", "|---|---|---|---|"]
    for row in rows:
        cells = [
            "" if row.get(key) is None else f"{row[key]:.{digits}f}"
            for key, digits in (("detlite_ms", 4), ("torchvision_ms", 4), ("ratio", 1))
        ]
        lines.append(f"| `{row['case']}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--calls", type=int, default=100, help="for each time")
    parser.add_argument("--small", action="store_true", help="a tenth of every size: a try")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the rows")
    args = parser.parse_args()
    rows = list(measure(args.device, args.calls, args.small))
    print(table(rows))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
