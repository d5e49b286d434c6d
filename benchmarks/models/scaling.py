"""Time per image for different image sizes and numbers of boxes, classes, objects and images."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.clock import Clock
from benchmarks.interleaved_timing import interleaved_medians
from benchmarks.roofline import count_flops

from .inference import Inference
from .training import Training

# Varied quantity -> values. The number of objects is varied in training, the others in inference.
AXES: dict[str, tuple[int, ...]] = {
    "short side": (400, 600, 800, 1200, 1600),
    "proposals": (250, 500, 1000, 2000, 4000),
    "classes": (80, 300, 600, 1203),
    "batch": (1, 2, 4, 8),
    "objects": (10, 50, 100, 250, 500),
}


@dataclass(frozen=True)
class ScalingRow:
    """Time per image with one value of a varied quantity.

    Attributes:
        axis: varied quantity, a key of AXES.
        value: value of the quantity.
        detlite_ms, torchvision_ms: median times per image.
        ratio: torchvision's time over detlite's.
        gflop: 10^9 operations per image, see `count_flops`.
        growth: detlite's time over its time with the first value.
        gflop_growth: operations over the operations with the first value.
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
    """Vary one quantity at a time, in float32.

    Args:
        inference, training: settings of the other quantities.
        axes: quantities to vary, with their values.
        turns: timed calls, after a warm-up call.
        clock: source of times.
    """
    for axis, values in axes.items():
        first: ScalingRow | None = None
        for value in values:
            images, make_call = _vary(axis, value, inference, training)
            calls = {name: make_call(name, "float32") for name in ("detlite", "torchvision")}
            seconds = interleaved_medians(calls, turns, inference.device, clock)
            ms, torchvision_ms = (1e3 * seconds[name] / images for name in calls)
            gflop = count_flops(calls["detlite"]) / 1e9 / images
            start = (first.detlite_ms, first.gflop) if first else (ms, gflop)
            growth, gflop_growth = ms / start[0], gflop / start[1]
            ratio = torchvision_ms / ms
            row = ScalingRow(axis, value, ms, torchvision_ms, ratio, gflop, growth, gflop_growth)
            first = first or row
            yield row


def _vary(
    axis: str, value: int, inference: Inference, training: Training
) -> tuple[int, Callable[[str, str], Callable[[], object]]]:
    """Return the number of images per call, and a function (library, dtype) -> call."""
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
        opts = ["MODEL.ROI_BOX_HEAD.NUM_CLASSES", value + 1]  # with background
        inference = replace(inference, opts=(*inference.opts, *opts))
    return inference.batch, inference.call


def plot_scaling(rows: Sequence[ScalingRow], path: Path) -> None:
    """Draw a log-log plot for each quantity; the dotted line is proportional to the operations.

    Raises:
        OSError: the file cannot be written.
    """
    # Imported here because it is slow to import.
    from matplotlib.figure import Figure

    axes = list(dict.fromkeys(row.axis for row in rows))
    figure = Figure(figsize=(3.2 * len(axes), 3), layout="constrained")
    panels = figure.subplots(1, len(axes), squeeze=False)[0]
    for axis, panel in zip(axes, panels, strict=True):
        points = [row for row in rows if row.axis == axis]
        values = [row.value for row in points]
        panel.plot(values, [row.torchvision_ms for row in points], "s-", label="torchvision")
        panel.plot(values, [row.detlite_ms for row in points], "o-", label="detlite")
        expected = [points[0].detlite_ms * row.gflop_growth for row in points]
        panel.plot(values, expected, "k:", label="proportional to operations")
        panel.set(xscale="log", yscale="log", xlabel=axis, ylabel="ms per image")
        panel.set_xticks(values, [str(value) for value in values])
        panel.minorticks_off()
    panels[0].legend(fontsize="small")
    figure.savefig(path, dpi=70)
