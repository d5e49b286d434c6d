"""Charts of a report as SVG, to stand in a page: small enough to be read on a phone."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from textwrap import shorten
from typing import TYPE_CHECKING

import numpy as np

from detlite.evaluation.matching import RECALL_THRESHOLDS

from .analysis.calibration import Calibration

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Interval = tuple[float, float]
Bar = tuple[float | None, Interval | None]  # a value and where it may lie
Points = Sequence[tuple[float, float]]

# Okabe and Ito's colours, told apart by eyes of every kind, darkened until they stand out from
# white by 3:1; with line styles, so that colour is not all.
COLOURS = ("#0072b2", "#c44e00", "#007a59", "#a8457f", "#7a5c00", "#444444")
STYLES = ("-", "--", "-.", ":")
_SIZE = (4.6, 3.2)  # inches


def style(number: int) -> tuple[str, str]:
    """Colour and line style of the series with a number from 0 on."""
    return COLOURS[number % len(COLOURS)], STYLES[number % len(STYLES)]


def precision_recall(title: str, curves: Mapping[str, np.ndarray]) -> str:
    """Precision float [101] at RECALL_THRESHOLDS, 0 to 1, by name."""
    figure, axes = _axes(title)
    for number, (name, precision) in enumerate(curves.items()):
        colour, line = style(number)
        axes.plot(
            100 * RECALL_THRESHOLDS,
            100 * precision,
            line,
            color=colour,
            label=_plain(name),
            linewidth=1.8,
        )
    axes.set(xlabel="recall: found objects (%)", ylabel="precision: right detections (%)")
    axes.set(xlim=(0, 100), ylim=(0, 103))
    axes.legend(loc="best", fontsize=9)
    return _svg(figure, title)


def bars(title: str, groups: Sequence[str], series: Mapping[str, Sequence[Bar]], label: str) -> str:
    """Horizontal bars with whiskers: for each group one of each series, 0 to 1, in percent."""
    count = len(series)
    rows = len(groups) * max(count, 1.6) + (count > 1) * math.ceil(count / 3)
    figure, axes = _axes(title, (_SIZE[0], 1.0 + 0.24 * rows))
    height = 0.8 / count
    highest = 0.0
    for number, (name, values) in enumerate(series.items()):
        places = np.arange(len(groups)) + (number - (count - 1) / 2) * height
        lengths = [100 * (value or 0) for value, _ in values]
        colour = COLOURS[number % len(COLOURS)]
        axes.barh(places, lengths, height * 0.9, color=colour, label=_plain(name))
        for place, length, (value, between) in zip(places, lengths, values, strict=True):
            end = length
            if between:
                low, high = (100 * bound for bound in between)
                axes.plot([low, high], [place, place], color="black", linewidth=1.2)
                axes.plot([low, high], [place, place], "|", color="black", markersize=5)
                end = max(high, length)
            text = "none there" if value is None else f"{length:.1f}"
            axes.annotate(text, (end, place), (4, 0), textcoords="offset points", va="center",
                          fontsize=9)  # fmt: skip
            highest = max(highest, end)
    axes.set_yticks(range(len(groups)), [_plain(group) for group in groups])
    axes.invert_yaxis()
    axes.set(xlabel=label, xlim=(0, max(highest * 1.18, 1)))
    axes.grid(axis="y", visible=False)
    if count > 1:
        figure.legend(loc="outside lower center", ncols=3, fontsize=9)
    return _svg(figure, title)


def reliability(title: str, series: Mapping[str, Calibration]) -> str:
    """Precision by score, beside the diagonal on which scores are probabilities."""
    figure, axes = _axes(title)
    axes.plot([0, 100], [0, 100], color="#767676", linewidth=1, label="perfect")
    for number, (name, found) in enumerate(series.items()):
        colour, line = style(number)
        filled = found.counts > 0
        sizes = 12 + 90 * np.sqrt(found.counts[filled] / max(found.counts.sum(), 1))
        x, y = 100 * found.scores[filled], 100 * found.precision[filled]
        axes.plot(x, y, line, color=colour, label=_plain(name), linewidth=1.5)
        axes.scatter(x, y, sizes, color=colour)
    axes.set(xlabel="mean score of the detections (%)", ylabel="right ones among them (%)")
    axes.set(xlim=(0, 103), ylim=(-3, 103))
    axes.legend(loc="upper left", fontsize=9)
    return _svg(figure, title)


def lines(
    title: str,
    curves: Mapping[str, Points],
    label: str,
    top: float | None = None,
    dots: bool = False,
) -> str:
    """Values over iterations, by name.

    Args:
        label: of the values, with their unit.
        top: the end of the axis; None: what the values need.
        dots: mark each value.
    """
    from matplotlib.ticker import MaxNLocator

    figure, axes = _axes(title)
    for number, (name, points) in enumerate(curves.items()):
        colour, line = style(number)
        x, y = zip(*points, strict=True)
        marker = "o" if dots else None
        axes.plot(x, y, line, color=colour, label=_plain(name), marker=marker, markersize=4)
    axes.set(xlabel="iteration", ylabel=label)
    axes.set_ylim(0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="best", fontsize=9)
    return _svg(figure, title)


def sizes(title: str, sides: Sequence[float], anchors: Sequence[Sequence[float]]) -> str:
    """How many objects have which size, beside the sizes of anchors.

    Args:
        sides: of objects, in pixels: the square root of width times height.
        anchors: the same of each level's anchors.
    """
    figure, axes = _axes(title)
    known = [side for side in sides if side > 0]
    every = known + [side for level in anchors for side in level]
    bounds = np.geomspace(0.8 * min(every), 1.25 * max(every), 31)
    counts, *_ = axes.hist(known, bounds.tolist(), color=COLOURS[0], label="objects")
    for number, side in enumerate(side for level in anchors for side in level):
        axes.axvline(side, color=COLOURS[1], linewidth=1.2, label=None if number else "anchors")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set(xlabel="side of a square of the same area (px)", ylabel="objects")
    axes.set_ylim(0, 1.3 * float(np.max(counts)))
    axes.legend(loc="upper right", fontsize=9)
    return _svg(figure, title)


def _axes(title: str, size: tuple[float, float] = _SIZE) -> tuple[Figure, Axes]:
    # Slow to import, and of use only here; a figure without pyplot needs no display.
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    axes.set_title(_plain(shorten(title, 52, placeholder="...")), loc="left", fontsize=11)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _plain(text: str) -> str:
    """The text without what matplotlib takes for formulas, or for labels to hide."""
    text = text.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _svg(figure: Figure, title: str) -> str:
    """The figure as an element that is as wide as there is room, the same for the same figure."""
    from matplotlib import rc_context

    buffer = io.StringIO()
    # Ids of clipping paths come from the salt: those of two figures must differ.
    # Text stays text: small, and to be found by a search.
    with rc_context({"svg.hashsalt": title, "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' id="[\w.]+_\d+"', "", text)  # which all figures would share
    text = re.sub(r' width="[\d.]+pt"| height="[\d.]+pt"', "", text, count=2)
    label = title.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
