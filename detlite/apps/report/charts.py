"""Charts of a report as SVG elements, readable on a phone."""

import html
import io
import math
import re
from collections.abc import Mapping, Sequence
from textwrap import shorten
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from detlite.apps.drawing.fonts import fonts_for

Bar = tuple[float | None, tuple[float, float] | None]  # value and confidence interval

# Okabe and Ito's colors for color-blind readers, darkened to a contrast of 3:1 on white. Line
# styles distinguish series too.
COLORS = ("#0072b2", "#c44e00", "#007a59", "#a8457f", "#7a5c00", "#444444")
_STYLES = ("-", "--", "-.", ":")
_SIZE = (4.6, 3.2)  # inches


def lines(
    title: str,
    curves: Mapping[str, Any],
    xlabel: str,
    ylabel: str,
    xlim: tuple[float, float] | None = None,
    ylim: tuple[float, float | None] = (0, None),
    markers: bool = False,
    weights: Mapping[str, np.ndarray] | None = None,
) -> str:
    """Plot named curves.

    Args:
        title: of the chart.
        curves: two sequences of numbers x and y by name.
        xlabel, ylabel, xlim, ylim: of the axes.
        markers: mark the points.
        weights: number of detections of each point: the size of its dot, next to the diagonal.
    """
    figure, axes = _axes(title)
    plot_curves(axes, curves, markers)
    for number, (name, counts) in enumerate((weights or {}).items()):
        x, y = curves[name]
        areas = 12 + 90 * np.sqrt(counts / max(counts.sum(), 1))
        axes.scatter(x, y, areas, color=COLORS[number % len(COLORS)])
    if weights is not None:
        axes.plot([0, 100], [0, 100], color="#767676", linewidth=1, label="perfect")
    axes.set(xlabel=xlabel, ylabel=ylabel, xlim=xlim, ylim=ylim)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    # Below the axes, where the legend covers no curve.
    figure.legend(loc="outside lower center", ncols=3, fontsize=9)
    return _svg(figure, title)


def plot_curves(axes: Axes, curves: Mapping[str, Any], markers: bool) -> None:
    """Draw named curves on the axes of a figure, in different colors and styles."""
    for number, (name, points) in enumerate(curves.items()):
        color, line = COLORS[number % len(COLORS)], _STYLES[number % len(_STYLES)]
        axes.plot(*points, line, color=color, label=_escape(name), linewidth=1.6,
                  marker="o" if markers else None, markersize=4)  # fmt: skip


def bars(title: str, groups: Sequence[str], series: Mapping[str, Sequence[Bar]], label: str) -> str:
    """Draw horizontal bars in percent with intervals: one bar per group and series."""
    count = len(series)
    rows = len(groups) * max(count, 1.6) + (count > 1) * math.ceil(count / 3)
    figure, axes = _axes(title, (_SIZE[0], 1.0 + 0.24 * rows))
    height = 0.8 / count
    longest = 0.0
    for number, (name, values) in enumerate(series.items()):
        positions = np.arange(len(groups)) + (number - (count - 1) / 2) * height
        lengths = [100 * (value or 0) for value, _ in values]
        color = COLORS[number % len(COLORS)]
        axes.barh(positions, lengths, height * 0.9, color=color, label=_escape(name))
        for y, length, (value, bounds) in zip(positions, lengths, values, strict=True):
            end = length
            if bounds:
                low, high = (100 * bound for bound in bounds)
                axes.plot([low, high], [y, y], "|-", color="black", linewidth=1.2, markersize=5)
                end = max(high, length)
            text = "n/a" if value is None else f"{length:.1f}"
            axes.annotate(text, (end, y), (4, 0), textcoords="offset points", va="center",
                          fontsize=9)  # fmt: skip
            longest = max(longest, end)
    axes.set_yticks(range(len(groups)), [_escape(group) for group in groups])
    axes.invert_yaxis()
    axes.set(xlabel=label, xlim=(0, max(longest * 1.18, 1)))
    axes.grid(axis="y", visible=False)
    if count > 1:
        figure.legend(loc="outside lower center", ncols=3, fontsize=9)
    return _svg(figure, title)


def sizes(title: str, sides: Sequence[float], anchors: Sequence[Sequence[float]]) -> str:
    """Plot a histogram of object sizes, with the sizes of the anchors of each level.

    A size is the square root of width times height, in pixels.
    """
    figure, axes = _axes(title)
    positive = [side for side in sides if side > 0]
    anchor_sides = [side for level in anchors for side in level]
    all_sides = positive + anchor_sides
    bounds = np.geomspace(0.8 * min(all_sides), 1.25 * max(all_sides), 31)
    counts, *_ = axes.hist(positive, bounds.tolist(), color=COLORS[0], label="objects")
    for number, side in enumerate(anchor_sides):
        axes.axvline(side, color=COLORS[1], linewidth=1.2, label=None if number else "anchors")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set(xlabel="square root of width x height (px)", ylabel="objects")
    axes.set_ylim(0, 1.3 * float(np.max(counts)))
    axes.legend(loc="upper right", fontsize=9)
    return _svg(figure, title)


def _axes(title: str, size: tuple[float, float] = _SIZE) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size, layout="constrained")  # without pyplot, it needs no display
    axes = figure.subplots()
    set_style(axes, title)
    return figure, axes


def set_style(axes: Axes, title: str) -> None:
    """Set the title and the grid of a chart."""
    axes.set_title(_escape(shorten(title, 52, placeholder="...")), loc="left", fontsize=11)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _escape(text: str) -> str:
    """Escape `$`, which starts a formula in matplotlib, and `_`, which hides a label."""
    text = text.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _svg(figure: Figure, title: str) -> str:
    """Return the figure as a deterministic SVG element that fills the available width."""
    buffer = io.StringIO()
    # The salt makes the ids of clipping paths unique to the figure. Font type "none" keeps text
    # searchable.
    with rc_context({"svg.hashsalt": title, "svg.fonttype": "none"}), fonts_for(figure):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' id="[\w.]+_\d+"', "", text)  # not unique in a page
    text = re.sub(r' width="[\d.]+pt"| height="[\d.]+pt"', "", text, count=2)
    return text.replace("<svg", f'<svg role="img" aria-label="{html.escape(title)}"', 1)
