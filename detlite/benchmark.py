"""How fast the operators are: detlite's and torchvision's in turn, on the same input.

Every case is one row: the median time of each library and how near the memory limit detlite comes.
torchvision always gets the contiguous float32 input that it likes best.
"""

from __future__ import annotations

import statistics
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torchvision
from pycocotools import mask as rle_codec
from torch import Tensor
from torch.nn import functional as F
from torchvision.models.detection.roi_heads import paste_masks_in_image

from . import ops
from .structures.masks import paste_masks_to_rle

IMAGE = (800, 1216)  # height, width
CHANNELS = 256
STRIDES = (4, 8, 16, 32, 64)
ROIS = 1000

Clock = Callable[[], float]


@dataclass(frozen=True)
class Case:
    """One comparison.

    Args:
        name: as in the results.
        dtype: of detlite's input.
        run: detlite's call.
        reference: torchvision's.
        traffic: the bytes that any implementation must read and write at least; 0 where the time
            goes elsewhere.
    """

    name: str
    dtype: str
    run: Callable[[], object]
    reference: Callable[[], object]
    traffic: int = 0


@dataclass(frozen=True)
class Row:
    """One result. Times are medians in milliseconds, rates in 10^9 bytes a second."""

    case: str
    device: str
    dtype: str
    detlite_ms: float
    torchvision_ms: float
    ratio: float
    gb_per_s: float | None
    copy_gb_per_s: float | None


def feature_maps(device: str, strides: Sequence[int] = STRIDES) -> list[Tensor]:
    """Float32 maps [1, 256, H / stride, W / stride] of one image."""
    height, width = IMAGE
    return [
        torch.randn(1, CHANNELS, -(-height // s), -(-width // s), device=device) for s in strides
    ]


def boxes_between(count: int, smallest: float, largest: float, device: str) -> Tensor:
    """Boxes [count, 4] anywhere in the image with sides between the two, small ones more often."""
    height, width = IMAGE
    ratio = largest / smallest
    sides = (
        smallest * ratio ** torch.rand(count, 2)
        if ratio > 20
        else (smallest + (largest - smallest) * torch.rand(count, 2))
    )
    sides = sides.minimum(torch.tensor([float(width), float(height)]))
    corner = torch.rand(count, 2) * (torch.tensor([float(width), float(height)]) - sides)
    return torch.cat([corner, corner + sides], dim=1).to(device)


def _rois(boxes: Tensor) -> Tensor:
    return torch.cat([boxes.new_zeros(len(boxes), 1), boxes], dim=1)


def _bytes(*tensors: Tensor) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)


def _pooled_bytes(size: int, element_size: int) -> int:
    return ROIS * CHANNELS * size * size * element_size


def align_cases(device: str) -> Iterator[Case]:
    """RoIAlign: 1000 boxes of 12 to 112 pixels on a map of stride 4."""
    (features,) = feature_maps(device, STRIDES[:1])
    last = features.contiguous(memory_format=torch.channels_last)
    half = last.bfloat16()
    rois = _rois(boxes_between(ROIS, 12, 112, device))

    def case(name: str, x: Tensor, size: int, sampling: int, aligned: bool) -> Case:
        args = (rois, size, 1 / 4, sampling, aligned)
        return Case(
            name,
            str(x.dtype).removeprefix("torch."),
            lambda: ops.roi_align(x, *args),
            lambda: torchvision.ops.roi_align(features, *args),
            _bytes(x) + _pooled_bytes(size, x.element_size()),
        )

    yield case("roi_align_7_s2_cl", last, 7, 2, False)
    yield case("roi_align_7_s2", features, 7, 2, False)
    yield case("roi_align_14_s0_cl", last, 14, 0, True)
    yield case("roi_align_7_s2_cl_bf16", half, 7, 2, False)

    args = (rois, 7, 1 / 4, 2, False)
    ours = last.clone().requires_grad_()
    theirs = features.clone().requires_grad_()
    grad = torch.randn(ROIS, CHANNELS, 7, 7, device=device)
    grad_last = grad.contiguous(memory_format=torch.channels_last)
    yield Case(
        "roi_align_7_s2_cl_train",
        "float32",
        lambda: torch.autograd.grad(ops.roi_align(ours, *args), ours, grad_last),
        lambda: torch.autograd.grad(torchvision.ops.roi_align(theirs, *args), theirs, grad),
        2 * (_bytes(features) + _pooled_bytes(7, 4)),
    )


def pool_cases(device: str) -> Iterator[Case]:
    """RoIPool on the same."""
    (features,) = feature_maps(device, STRIDES[:1])
    last = features.contiguous(memory_format=torch.channels_last)
    args = (_rois(boxes_between(ROIS, 12, 112, device)), 7, 1 / 4)
    yield Case(
        "roi_pool_7_cl",
        "float32",
        lambda: ops.roi_pool(last, *args),
        lambda: torchvision.ops.roi_pool(features, *args),
        _bytes(last) + _pooled_bytes(7, 4),
    )


def pyramid_cases(device: str) -> Iterator[Case]:
    """RoIAlign over five levels: 1000 boxes of 16 to 800 pixels."""
    maps = feature_maps(device)
    last = [x.contiguous(memory_format=torch.channels_last) for x in maps]
    boxes = boxes_between(ROIS, 16, 800, device)
    named = OrderedDict((str(level), x) for level, x in enumerate(maps))
    reference = torchvision.ops.MultiScaleRoIAlign(list(named), 7, 2)
    scales = [1 / s for s in STRIDES]

    def case(name: str, inputs: Sequence[Tensor]) -> Case:
        return Case(
            name,
            "float32",
            lambda: ops.pyramid_roi_align(inputs, [boxes], 7, scales, 2),
            lambda: reference(named, [boxes], [IMAGE]),
            _bytes(*maps) + _pooled_bytes(7, 4),
        )

    yield case("pyramid_roi_align_7", maps)
    yield case("pyramid_roi_align_7_cl", last)


def nms_cases(device: str) -> Iterator[Case]:
    """Non-maximum suppression at the thresholds of a proposal network and of a box head."""

    def case(name: str, boxes: Tensor) -> Case:
        scores = torch.rand(len(boxes), device=device)
        return Case(
            name,
            "float32",
            lambda: ops.nms(boxes, scores, 0.7),
            lambda: torchvision.ops.nms(boxes, scores, 0.7),
        )

    yield case("nms_12k_spread", boxes_between(12_000, 12, 112, device))
    # As proposals lie around objects: off by a tenth of their sides.
    objects = boxes_between(30, 60, 112, device)[torch.randint(30, (12_000,), device=device)]
    sides = (objects[:, 2:] - objects[:, :2]).repeat(1, 2)
    noise = torch.randn(12_000, 4, device=device) / 10
    yield case("nms_12k_clustered", objects + noise * sides)

    boxes, scores = boxes_between(4_000, 12, 112, device), torch.rand(4_000, device=device)
    classes = torch.randint(80, (4_000,), device=device)
    yield Case(
        "batched_nms_4k_80",
        "float32",
        lambda: ops.batched_nms(boxes, scores, classes, 0.5),
        lambda: torchvision.ops.batched_nms(boxes, scores, classes, 0.5),
    )


def mask_cases(device: str) -> Iterator[Case]:
    """100 masks of 28 x 28, blobs rather than noise, into an image's run lengths."""
    boxes = boxes_between(100, 20, 400, device)
    logits = F.interpolate(torch.randn(100, 1, 5, 5, device=device), (28, 28), mode="bicubic")
    probs = (4 * logits + 1).sigmoid()

    def reference() -> list[dict[str, object]]:
        pasted = paste_masks_in_image(probs, boxes, IMAGE)[:, 0] >= 0.5
        return [rle_codec.encode(np.asfortranarray(m)) for m in pasted.byte().cpu().numpy()]

    yield Case(
        "paste_100_rle",
        "float32",
        lambda: paste_masks_to_rle(probs[:, 0], boxes, IMAGE),
        reference,
    )


GROUPS = (align_cases, pool_cases, pyramid_cases, nms_cases, mask_cases)


def _milliseconds(run: Callable[[], object], device: str, clock: Clock) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = clock()
    result = run()
    if device == "cuda":
        torch.cuda.synchronize()
    stop = clock()
    del result  # giving back memory is not part of the call
    return 1e3 * (stop - start)


def _copy_rate(traffic: int, device: str, clock: Clock) -> float:
    """Bytes a second, read and written, of a plain copy into memory that is there already."""
    source = torch.ones(traffic // 2, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    times = [_milliseconds(lambda: target.copy_(source), device, clock) for _ in range(7)]
    return traffic / statistics.median(times) / 1e6


def measure(case: Case, device: str, seconds: float, clock: Clock) -> Row:
    """Runs both in turn for about so many seconds, five turns at least.

    A turn is one call of torchvision's and up to eight of detlite's, as long as those together take
    less: of the shorter times more are needed for a steady median.
    """
    for run in (case.run, case.reference):
        _milliseconds(run, device, clock)
    warm = [_milliseconds(run, device, clock) for run in (case.run, case.reference)]
    calls = min(max(int(warm[1] / warm[0]), 1), 8)
    ours: list[float] = []
    theirs: list[float] = []
    while len(theirs) < 5 or (sum(ours) + sum(theirs) < 1e3 * seconds and len(theirs) < 1000):
        ours += [_milliseconds(case.run, device, clock) for _ in range(calls)]
        theirs.append(_milliseconds(case.reference, device, clock))
    ms, reference_ms = statistics.median(ours), statistics.median(theirs)
    return Row(
        case.name,
        device,
        case.dtype,
        ms,
        reference_ms,
        reference_ms / ms,
        case.traffic / ms / 1e6 if case.traffic else None,
        _copy_rate(case.traffic, device, clock) if case.traffic else None,
    )


def benchmark_ops(
    device: str,
    only: Sequence[str] = (),
    seconds: float = 3.0,
    clock: Clock = time.perf_counter,
) -> Iterator[Row]:
    """Measures every case, or those whose name contains one of `only`.

    Args:
        device: "cpu" or "cuda".
        only: parts of names; all cases where empty.
        seconds: about so long for each case.
        clock: seconds since some moment. `time.process_time` counts what the process itself
            used, which on one thread says as much, on a machine that others use too.
    """
    for group in GROUPS:
        torch.manual_seed(0)
        for case in group(device):
            if not only or any(part in case.name for part in only):
                yield measure(case, device, seconds, clock)
