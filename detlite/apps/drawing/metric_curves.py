"""Read and plot the metrics of a training run over its iterations."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from detlite.data.errors import DataError

Curves = dict[str, list[tuple[int, float]]]

# Each evaluation has two of them: COCO and LVIS, VOC, region proposals.
_PLOTTED = ("AP", "AP50", "AP50_07", "AR@100", "AR@1000")


def plot_metrics(metrics_file: str | Path, image_file: str | Path) -> None:
    """Plot losses on the left, and AP or recall on the right.

    Args:
        metrics_file: metrics.jsonl of the run, with lines {"iteration", "loss", "loss_...", ...}
            and {"iteration", "evaluation": {dataset: {"bbox": {"AP", "AP50", ...}, ...}}}.
        image_file: the file to write, in the format of its suffix.

    Raises:
        DataError: the file cannot be read, or a line is not JSON or has no iteration.
    """
    # Imported here because it is slow. A figure without pyplot needs no display.
    from matplotlib.figure import Figure

    losses, metrics = metric_curves(read_metrics(Path(metrics_file)))
    figure = Figure(figsize=(12, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, curve in sorted(losses.items(), key=lambda item: item[0] != "loss"):
        color, linewidth = ("black", 2.0) if name == "loss" else (None, 1.2)
        label = name.removeprefix("loss_")
        left.plot(*zip(*curve, strict=True), label=label, color=color, linewidth=linewidth)
    for number, (name, curve) in enumerate(metrics.items()):
        style = {"color": f"C{number // 2}", "linestyle": "--" if number % 2 else "-"}
        right.plot(*zip(*curve, strict=True), label=name, marker="o", markersize=4, **style)
    left.set(title="Training loss", ylim=(0, None))
    right.set(title="Average precision, or recall (%)", ylim=(0, 100))
    for panel, curves in ((left, losses), (right, metrics)):
        panel.set_xlabel("iteration")
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
        if curves:
            panel.legend(fontsize=9)
        else:
            panel.text(0.5, 0.5, "nothing yet", ha="center", transform=panel.transAxes)
    figure.savefig(image_file, dpi=110)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a metrics.jsonl, with the errors of `plot_metrics`."""
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
                f"{path}: line {number} is not a JSON object with 'iteration'"
            ) from error
    return lines


def metric_curves(lines: list[dict[str, Any]]) -> tuple[Curves, Curves]:
    """Return the losses, and the metrics in percent, as lists of (iteration, value) by name."""
    losses: Curves = defaultdict(list)
    metrics: Curves = defaultdict(list)
    several = len({name for line in lines for name in line.get("evaluation", {})}) > 1
    for line in lines:
        for name, value in line.items():
            if name.startswith("loss"):
                losses[name].append((line["iteration"], value))
        for dataset, kinds in line.get("evaluation", {}).items():
            for kind, values in kinds.items():
                if kind == "loss" and values["total"] is not None:
                    name = f"{dataset} loss" if several else "validation loss"
                    losses[name].append((line["iteration"], values["total"]))
                for metric in _PLOTTED:
                    name = f"{dataset} {kind} {metric}" if several else f"{kind} {metric}"
                    if values.get(metric) is not None:
                        metrics[name].append((line["iteration"], 100 * values[metric]))
    return losses, metrics
