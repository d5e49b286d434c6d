"""Read the losses and metrics of a training run from its metrics.jsonl."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from detlite.files.errors import DataError
from detlite.files.reading import read_text

Curves = dict[str, list[tuple[int, float]]]

# Each kind of evaluation (COCO and LVIS, VOC, region proposals) reports two of these metrics.
_PLOTTED = ("AP", "AP50", "AP50_07", "AR@100", "AR@1000")
_MAX_BYTES = 1 << 30


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a metrics.jsonl.

    Lines have {"iteration", "loss", "loss_...", ...}, or {"iteration", "evaluation"} with metrics
    by dataset and kind.

    Raises:
        DataError: the file cannot be read, or a line is not JSON or has no iteration.
    """
    lines = []
    try:
        text = read_text(path, _MAX_BYTES)
    except (OSError, UnicodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
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
