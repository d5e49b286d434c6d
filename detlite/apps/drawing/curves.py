"""Curves of a training run."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from detlite.data.errors import DataError

Curves = dict[str, list[tuple[int, float]]]

# Every kind has two of them: of COCO and LVIS, of VOC, of region proposals.
_DRAWN = ("AP", "AP50", "AP50_07", "AR@100", "AR@1000")


def plot_metrics(metrics_file: str | Path, picture_file: str | Path) -> None:
    """Draws a run's losses and AP, or recall, over its iterations into one picture of two panels.

    Args:
        metrics_file: the run's metrics.jsonl, of lines {"iteration", "loss", "loss_...", ...} and
            {"iteration", "evaluation": {data set: {"bbox": {"AP", "AP50", ...}, ...}}}.
        picture_file: the PNG (or other format by its suffix) to write.

    Raises:
        DataError: a file that cannot be read, or a line that is not json or has no iteration.
    """
    # Slow to import, and of use only here; a figure without pyplot needs no display.
    from matplotlib.figure import Figure

    losses, precisions = curves_of(read_metrics(Path(metrics_file)))
    figure = Figure(figsize=(12, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, curve in sorted(losses.items(), key=lambda item: item[0] != "loss"):
        color, linewidth = ("black", 2.0) if name == "loss" else (None, 1.2)
        label = name.removeprefix("loss_")
        left.plot(*zip(*curve, strict=True), label=label, color=color, linewidth=linewidth)
    for number, (name, curve) in enumerate(precisions.items()):
        style = {"color": f"C{number // 2}", "linestyle": "--" if number % 2 else "-"}
        right.plot(*zip(*curve, strict=True), label=name, marker="o", markersize=4, **style)
    left.set(title="Training loss", ylim=(0, None))
    right.set(title="Average precision, or recall (%)", ylim=(0, 100))
    for panel, curves in ((left, losses), (right, precisions)):
        panel.set_xlabel("iteration")
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
        if curves:
            panel.legend(fontsize=9)
        else:
            panel.text(0.5, 0.5, "nothing yet", ha="center", transform=panel.transAxes)
    figure.savefig(picture_file, dpi=110)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl; errors as from `plot_metrics`."""
    lines = []
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            lines.append(json.loads(line))
            lines[-1]["iteration"]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path}: line {number} is not a json object with 'iteration'"
            ) from error
    return lines


def curves_of(lines: list[dict[str, Any]]) -> tuple[Curves, Curves]:
    """The losses, and in percent and pairs the metrics, as (iteration, value) lists by name."""
    losses: Curves = defaultdict(list)
    precisions: Curves = defaultdict(list)
    several = len({name for line in lines for name in line.get("evaluation", {})}) > 1
    for line in lines:
        for name, value in line.items():
            if name.startswith("loss"):
                losses[name].append((line["iteration"], value))
        for dataset, kinds in line.get("evaluation", {}).items():
            for kind, metrics in kinds.items():
                if kind == "loss" and metrics["total"] is not None:
                    name = f"{dataset} loss" if several else "validation loss"
                    losses[name].append((line["iteration"], metrics["total"]))
                for metric in _DRAWN:
                    name = f"{dataset} {kind} {metric}" if several else f"{kind} {metric}"
                    if metrics.get(metric) is not None:
                        precisions[name].append((line["iteration"], 100 * metrics[metric]))
    return losses, precisions
