"""Charts of a report as SVG elements, readable on a phone."""

import html
import io
import re
import warnings
from collections.abc import Mapping
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

# Okabe and Ito's colors for color-blind readers, darkened to a contrast of 3:1 on white. Line
# styles distinguish series too.
COLORS = ("#0072b2", "#c44e00", "#007a59", "#a8457f", "#7a5c00", "#444444")
_STYLES = ("-", "--", "-.", ":")
_SIZE = (4.6, 3.2)  # inches


def chart(title: str, curves: Mapping[str, Any], **settings: Any) -> str:
    """Return a chart of named curves, with a legend; see `plot` for the arguments."""
    figure = Figure(figsize=_SIZE, layout="constrained")  # without pyplot, it needs no display
    plot(figure.subplots(), title, curves, **settings)
    # Below the axes, where the legend covers no curve.
    figure.legend(loc="outside lower center", ncols=3, fontsize=9)
    return _svg(figure, title)


def plot(
    axes: Axes, title: str, curves: Mapping[str, Any], marker: str | None = None, **settings: Any
) -> None:
    """Draw named curves on the axes of a figure, in different colors and styles.

    Args:
        axes: the axes.
        title: of the chart.
        curves: two sequences of numbers x and y by name.
        marker: how points are marked.
        settings: properties of the axes, such as their labels.
    """
    axes.set_title(title, loc="left", fontsize=11)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    for number, (name, points) in enumerate(curves.items()):
        color, line = COLORS[number % len(COLORS)], _STYLES[number % len(_STYLES)]
        # `$` starts a formula, and a space keeps labels that start with `_` in the legend.
        label = " " * name.startswith("_") + name.replace("$", r"\$")
        axes.plot(*points, line, color=color, label=label, linewidth=1.6, markersize=4,
                  marker=marker or "o" * (len(points[0]) == 1))  # fmt: skip
    axes.set(**{"ylim": (0, None), **settings})
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.xaxis.set_major_formatter("{x:.0f}")


def _svg(figure: Figure, title: str) -> str:
    """Return the figure as a deterministic SVG element that fills the available width."""
    buffer = io.StringIO()
    # The salt makes the ids of clipping paths unique to the figure. Font type "none" keeps text
    # searchable, and browsers have fonts for characters that matplotlib's font lacks.
    with rc_context({"svg.hashsalt": title, "svg.fonttype": "none"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' id="[\w.]+_\d+"', "", text)  # not unique in a page
    text = re.sub(r' width="[\d.]+pt"| height="[\d.]+pt"', "", text, count=2)
    return text.replace("<svg", f'<svg role="img" aria-label="{html.escape(title)}"', 1)
