"""Training curves and speed of runs, for a report."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from detlite.apps.drawing.run_drawings import Curves, metric_curves

from . import charts
from .runs import Run


def training_history(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the charts and the table rows for the template."""
    losses: Curves = {}
    learning_rates: Curves = {}
    precisions: Curves = {}
    for run in runs:
        prefix = f"{run.name} " if len(runs) > 1 else ""
        run_losses, metrics = metric_curves(run.lines)
        # The components of the loss would clutter a chart of several runs.
        names = [name for name in run_losses if len(runs) == 1 or "_" not in name]
        for name in sorted(names, key=lambda name: (name != "loss", name)):
            losses[prefix + name.removeprefix("loss_")] = run_losses[name]
        if rates := [(line["iteration"], line["lr"]) for line in run.lines if "lr" in line]:
            learning_rates[run.name] = rates
        for name, curve in metrics.items():
            if name.split()[-1] == "AP":
                precisions[prefix + name] = curve
    drawn = [
        charts.lines("Training loss", losses, "loss"),
        charts.lines("Learning rate", learning_rates, "learning rate"),
        charts.lines("AP on the test set", precisions, "AP (%)", markers=True),
    ]
    return {"charts": list(filter(None, drawn)), "rows": [_speed(run) for run in runs]}


def _speed(run: Run) -> dict[str, Any]:
    """Return a table row about the speed of training and evaluation."""
    tests = [f"{dataset}: {speed}" for dataset, speed in run.speeds.items()]
    row: dict[str, Any] = {"name": run.name, "training": [], "tests": tests}
    timed = [line for line in run.lines if line.get("time")]
    if not timed:
        return row
    times = [line["time"] for line in timed]
    waiting = sum(line.get("data_time", 0.0) for line in timed) / sum(times)
    batch = run.cfg.SOLVER.IMS_PER_BATCH
    row["training"] = [
        f"{timed[-1]['iteration']} iterations of {batch} images",
        f"{median(times):.3f} s per iteration (median)",
        f"{batch / median(times):.2f} images/s",
        f"{100 * waiting:.0f} % of the time waiting for data",
    ]
    if waiting > 0.2:
        row["advice"] = (
            f"{run.name} waits for images: raise DATALOADER.NUM_WORKERS if there are idle cores."
        )
    if memory := [line["max_memory_mib"] for line in timed if "max_memory_mib" in line]:
        row["training"].append(f"{max(memory):.0f} MiB of GPU memory")
    return row
