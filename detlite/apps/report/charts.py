"""Charts of a report as SVG elements, readable on a phone."""

import html
import io
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from textwrap import shorten
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, fontManager
from matplotlib.text import Text
from matplotlib.ticker import LogLocator, MaxNLocator

from detlite.apps.drawing.fonts import split_by_font

# Okabe and Ito's colors for color-blind readers, darkened to a contrast of 3:1 on white. Line
# styles distinguish series too.
COLORS = ("#0072b2", "#c44e00", "#007a59", "#a8457f", "#7a5c00", "#444444")
_STYLES = ("-", "--", "-.", ":")
_SIZE = (4.6, 3.2)  # inches


def chart(
    title: str,
    curves: Mapping[str, Any],
    xlabel: str,
    ylabel: str,
    weights: Mapping[str, np.ndarray] | None = None,
    **settings: Any,
) -> str:
    """Return a chart of named curves, with a legend.

    Args:
        title, curves, xlabel, settings: see `plot`.
        ylabel: label of the y axis.
        weights: number of detections of each point: the size of its dot, next to the diagonal.
    """
    figure = Figure(figsize=_SIZE, layout="constrained")  # without pyplot, it needs no display
    axes = figure.subplots()
    plot(axes, title, curves, xlabel, ylabel=ylabel, **settings)
    for number, (name, counts) in enumerate((weights or {}).items()):
        areas = 12 + 90 * np.sqrt(counts / max(counts.sum(), 1))
        x, y = curves[name]
        axes.scatter(x, y, areas, color=COLORS[number % len(COLORS)])
    if weights is not None:
        axes.plot([0, 100], [0, 100], color="#767676", linewidth=1, label="perfect")
    # Below the axes, where the legend covers no curve.
    figure.legend(loc="outside lower center", ncols=3, fontsize=9)
    return _svg(figure, title)


def plot(
    axes: Axes,
    title: str,
    curves: Mapping[str, Any],
    xlabel: str,
    markers: bool = False,
    **settings: Any,
) -> None:
    """Draw named curves on the axes of a figure, in different colors and styles.

    Args:
        axes: the axes.
        title: of the chart.
        curves: two sequences of numbers x and y by name.
        xlabel: label of the x axis, which has integers, or powers of 2 if `xscale` is "log".
        markers: mark the points.
        settings: other properties of the axes.
    """
    axes.set_title(_escape(shorten(title, 52, placeholder="...")), loc="left", fontsize=11)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    for number, (name, points) in enumerate(curves.items()):
        color, line = COLORS[number % len(COLORS)], _STYLES[number % len(_STYLES)]
        axes.plot(*points, line, color=color, label=_escape(name), linewidth=1.6,
                  marker="o" if markers else None, markersize=4)  # fmt: skip
    axes.set(xlabel=xlabel, **{"ylim": (0, None), **settings})
    axes.xaxis.set_major_formatter("{x:.0f}")
    if settings.get("xscale") == "log":
        axes.xaxis.set_major_locator(LogLocator(2))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


@contextmanager
def fonts_for(figure: Figure) -> Iterator[None]:
    """Write the texts of a matplotlib figure that is saved in fonts that have their characters."""
    texts = figure.findobj(Text)
    runs = split_by_font("".join(text.get_text() for text in texts))
    names = []
    for file in dict.fromkeys(file for file, _ in runs if file):
        fontManager.addfont(file)
        names.append(FontProperties(fname=file).get_name())
    for text in texts if names else ():
        text.set_fontfamily(list(dict.fromkeys([*text.get_fontfamily(), *names])))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # `_file_with` has said it
        yield


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
