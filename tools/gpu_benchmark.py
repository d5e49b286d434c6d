"""Time the operators on a GPU with CUDA events, and compare them with torchvision's operators.

    python tools/gpu_benchmark.py --json gpu.json

Each time is the median of many calls. Before each call, a write of memory larger than the GPU's L2
cache evicts the inputs. Backward passes are timed separately. detlite and torchvision receive the
same boxes and maps. `_cl` in a name means that detlite's maps are channels-last; torchvision's maps
are always contiguous, its fastest layout. Without torchvision, its column is empty.
`python -m benchmarks ops` measures wall times and more operators.
"""

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
Pair = tuple[str, Run, Run | None]  # name, detlite's call, torchvision's call if available
STRIDES = (4, 8, 16, 32)
FLUSHED_BYTES = 512 << 20


class Clock:
    """Measure the milliseconds of a call on a device."""

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
            elapsed = 1e3 * (time.perf_counter() - start)
            return lambda: elapsed
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        return lambda: begin.elapsed_time(end)


class Inputs:
    """Random inputs with the sizes of a detector on 800 x 1216 pixels, or a tenth if `small`."""

    def __init__(self, device: str, small: bool) -> None:
        self.device, self.divisor = device, 10 if small else 1
        self.height, self.width = 800 // self.divisor, 1216 // self.divisor
        self.channels = 256 // self.divisor

    def maps(self, images: int, strides: tuple[int, ...] = STRIDES) -> list[Tensor]:
        shapes = [(images, self.channels, self.height // s, self.width // s) for s in strides]
        return [torch.randn(shape, device=self.device).requires_grad_() for shape in shapes]

    def boxes(self, count: int, min_side: float, max_side: float) -> Tensor:
        count //= self.divisor
        extent = torch.tensor([self.width, self.height])
        sides = min_side * (max_side / min_side) ** torch.rand(count, 2) / self.divisor
        corner = torch.rand(count, 2) * (extent - sides).clamp(min=0)
        return torch.cat([corner, corner + sides], 1).to(self.device)

    def clustered(self, count: int, objects: int) -> Tensor:
        centers = self.boxes(objects * self.divisor, 60, 300)
        index = torch.randint(0, len(centers), (count // self.divisor,), device=self.device)
        return centers[index] + torch.randn(len(index), 4, device=self.device) * 8 / self.divisor


def gradients(
    name: str, ours: Run, theirs: Run | None, their_maps: list[Tensor], our_maps: list[Tensor]
) -> Iterator[Pair]:
    """Yield the forward passes, then the backward passes."""
    yield name, ours, theirs

    def backward(run: Run, maps: list[Tensor]) -> Run:
        pooled: Any = run()
        grad = torch.randn_like(pooled)
        return lambda: torch.autograd.grad(pooled, maps, grad, retain_graph=True)

    yield f"{name}_backward", backward(ours, our_maps), theirs and backward(theirs, their_maps)


def to_channels_last(maps: list[Tensor]) -> list[Tensor]:
    channels_last = torch.channels_last
    return [x.detach().contiguous(memory_format=channels_last).requires_grad_() for x in maps]


def roi_cases(inputs: Inputs) -> Iterator[Pair]:
    maps = inputs.maps(1, STRIDES[:1])
    boxes = inputs.boxes(1000, 12, 112)
    rois = torch.cat([boxes.new_zeros(len(boxes), 1), boxes], 1)
    align = (rois, 7, 0.25, 2)
    for suffix, own in (("", maps), ("_cl", to_channels_last(maps))):
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


def pyramid_cases(inputs: Inputs) -> Iterator[Pair]:
    images = 16 if inputs.divisor == 1 else 2
    maps = inputs.maps(images)
    boxes = [inputs.boxes(512, 16, 800) for _ in range(images)]
    scales = [1 / s for s in STRIDES]
    reference = None
    if torchvision:
        named = OrderedDict((str(i), x) for i, x in enumerate(maps))
        pooler = torchvision.ops.MultiScaleRoIAlign(list(named), 7, 2)
        sizes = [(inputs.height, inputs.width)] * images
        reference = lambda: pooler(named, boxes, sizes)  # noqa: E731
    for suffix, own in (("", maps), ("_cl", to_channels_last(maps))):
        yield from gradients(
            f"pyramid_16x512{suffix}",
            partial(ops.pyramid_roi_align, own, boxes, 7, scales, 2),
            reference,
            maps,
            own,
        )


def box_cases(inputs: Inputs) -> Iterator[Pair]:
    for name, boxes in (
        ("nms_12k_spread", inputs.boxes(12_000, 20, 300)),
        ("nms_12k_clustered", inputs.clustered(12_000, 30)),
    ):
        arguments = (boxes, torch.rand(len(boxes), device=inputs.device), 0.7)
        yield (
            name,
            partial(ops.nms, *arguments),
            torchvision and partial(torchvision.ops.nms, *arguments),
        )
    boxes = inputs.boxes(4000, 20, 300)
    scores = torch.rand(len(boxes), device=inputs.device)
    groups = torch.randint(0, 80, (len(boxes),), device=inputs.device)
    yield (
        "batched_nms_4k_80",
        lambda: ops.batched_nms(boxes, scores, groups, 0.5),
        torchvision and (lambda: torchvision.ops.batched_nms(boxes, scores, groups, 0.5)),
    )
    candidates, truth = inputs.boxes(243_000, 32, 512), inputs.boxes(100, 30, 300)
    valid = torch.ones(1, len(truth), dtype=torch.bool, device=inputs.device)
    matcher = None
    if torchvision:
        from torchvision.models.detection._utils import Matcher

        match = Matcher(0.7, 0.3, allow_low_quality_matches=True)
        matcher = lambda: match(torchvision.ops.box_iou(truth, candidates))  # noqa: E731
    yield "match_243k_100", lambda: ops.match_boxes(truth[None], valid, candidates), matcher


def loss_cases(inputs: Inputs) -> Iterator[Pair]:
    logits = torch.randn(200_000 // inputs.divisor, 80, device=inputs.device, requires_grad=True)
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
    clock, inputs = Clock(device, calls), Inputs(device, small)
    for group in (roi_cases, pyramid_cases, box_cases, loss_cases):
        torch.manual_seed(0)
        try:
            for name, ours, theirs in group(inputs):
                own = clock(ours)
                other = clock(theirs) if theirs else None
                ratio = other / own if other else None
                yield {"case": name, "detlite_ms": own, "torchvision_ms": other, "ratio": ratio}
        except torch.cuda.OutOfMemoryError:
            yield {"case": f"{group.__name__}: out of GPU memory, skipped the rest"}


def table(rows: list[dict[str, Any]]) -> str:
    """Format the rows as a Markdown table."""
    lines = ["| case | detlite ms | torchvision ms | ratio |", "|---|---|---|---|"]
    for row in rows:
        cells = [
            "" if row.get(key) is None else f"{row[key]:.{digits}f}"
            for key, digits in (("detlite_ms", 4), ("torchvision_ms", 4), ("ratio", 1))
        ]
        lines.append(f"| `{row['case']}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--calls", type=int, default=100, help="calls per measurement")
    parser.add_argument(
        "--small", action="store_true", help="divide all sizes by ten, for a test run"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to a file")
    args = parser.parse_args()
    rows = list(measure(args.device, args.calls, args.small))
    print(table(rows))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
