"""What an image costs as it grows, and with more boxes, classes, objects and images at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.interleaved_timing import in_turn
from benchmarks.operators.case import Clock
from benchmarks.roofline import flops

from .inference import Inference
from .training import Training

# What is varied, and the values that it takes. All but the objects are of inference.
AXES: dict[str, tuple[int, ...]] = {
    "short side": (400, 600, 800, 1200, 1600),
    "proposals": (250, 500, 1000, 2000, 4000),
    "classes": (80, 300, 600, 1203),
    "batch": (1, 2, 4, 8),
    "objects": (10, 50, 100, 250, 500),
}


@dataclass(frozen=True)
class ScalingRow:
    """What an image costs with one value of what is varied.

    Attributes:
        axis: what is varied, of AXES.
        value: of it.
        detlite_ms, torchvision_ms: medians, of an image.
        ratio: torchvision's time over detlite's.
        gflop: 10^9 operations of an image, see `peak.flops`.
        growth: detlite's time over that of the axis's first value.
        gflop_growth: the same of the operations.
    """

    axis: str
    value: int
    detlite_ms: float
    torchvision_ms: float
    ratio: float
    gflop: float
    growth: float
    gflop_growth: float


def benchmark_scaling(
    inference: Inference,
    training: Training,
    axes: Mapping[str, Sequence[int]] = AXES,
    turns: int = 3,
    clock: Clock = time.perf_counter,
) -> Iterator[ScalingRow]:
    """Varies each axis alone, in float32.

    Args:
        inference, training: what does not vary.
        axes: those of AXES that are to be varied, with their values.
        turns: calls that count, after one to warm up.
        clock: what times are read from.
    """
    for axis, values in axes.items():
        first: ScalingRow | None = None
        for value in values:
            images, call = _varied(axis, value, inference, training)
            calls = {name: call(name, "float32") for name in ("detlite", "torchvision")}
            seconds = in_turn(calls, turns, inference.device, clock)
            ours, theirs = (1e3 * seconds[name] / images for name in calls)
            gflop = flops(calls["detlite"]) / 1e9 / images
            start = (first.detlite_ms, first.gflop) if first else (ours, gflop)
            growth, gflop_growth = ours / start[0], gflop / start[1]
            row = ScalingRow(axis, value, ours, theirs, theirs / ours, gflop, growth, gflop_growth)
            first = first or row
            yield row


def _varied(
    axis: str, value: int, inference: Inference, training: Training
) -> tuple[int, Callable[[str, str], Callable[[], object]]]:
    """The images of a call, and what makes one of a library in an arithmetic."""
    if axis == "objects":
        return training.batch, replace(training, objects=value).step
    if axis == "short side":
        height, width = inference.size
        inference = replace(inference, size=(value, round(value * width / height)))
    elif axis == "batch":
        inference = replace(inference, batch=value)
    elif axis == "proposals":
        keys = ("PRE_NMS_TOP_N_TEST", "POST_NMS_TOP_N_TEST", "FPN_POST_NMS_TOP_N_TEST")
        opts = [item for key in keys for item in (f"MODEL.RPN.{key}", value)]
        inference = replace(inference, opts=(*inference.opts, *opts))
    elif axis == "classes":
        opts = ["MODEL.ROI_BOX_HEAD.NUM_CLASSES", value + 1]  # and the background
        inference = replace(inference, opts=(*inference.opts, *opts))
    return inference.batch, inference.call


def plot_scaling(rows: Sequence[ScalingRow], path: Path) -> None:
    """Draws a panel for each axis, both logarithmic; dotted is what grows as the operations do.

    Raises:
        OSError: the file cannot be written.
    """
    # Slow to import, and of use only here.
    from matplotlib.figure import Figure

    axes = list(dict.fromkeys(row.axis for row in rows))
    figure = Figure(figsize=(3.2 * len(axes), 3), layout="constrained")
    panels = figure.subplots(1, len(axes), squeeze=False)[0]
    for axis, panel in zip(axes, panels, strict=True):
        own = [row for row in rows if row.axis == axis]
        values = [row.value for row in own]
        panel.plot(values, [row.torchvision_ms for row in own], "s-", label="torchvision")
        panel.plot(values, [row.detlite_ms for row in own], "o-", label="detlite")
        asked = [own[0].detlite_ms * row.gflop_growth for row in own]
        panel.plot(values, asked, "k:", label="as the operations")
        panel.set(xscale="log", yscale="log", xlabel=axis, ylabel="ms an image")
        panel.set_xticks(values, [str(value) for value in values])
        panel.minorticks_off()
    panels[0].legend(fontsize="small")
    figure.savefig(path, dpi=70)
