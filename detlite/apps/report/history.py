"""How runs were trained: curves over iterations, and speed."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from detlite.apps.drawing.curves import curves_of

from . import charts
from .runs import LoggedRun


def history(runs: Sequence[LoggedRun]) -> dict[str, Any]:
    """Charts and a table for the page of a report."""
    losses: dict[str, Any] = {}
    rates: dict[str, Any] = {}
    precisions: dict[str, Any] = {}
    for run in runs:
        prefix = f"{run.name} " if len(runs) > 1 else ""
        found, reached = curves_of(run.lines)
        # Of several runs the parts of the loss would be a thicket.
        wanted = [name for name in found if len(runs) == 1 or "_" not in name]
        wanted.sort(key=lambda name: (name != "loss", name))
        losses |= {prefix + (name.removeprefix("loss_") or name): found[name] for name in wanted}
        rate = [(line["iteration"], line["lr"]) for line in run.lines if "lr" in line]
        if rate:
            rates[run.name] = rate
        wanted = [name for name in reached if name.split()[-1] == "AP"]
        precisions |= {prefix + name: reached[name] for name in wanted}
    drawn = []
    if losses:
        drawn.append(charts.lines("Training loss", losses, "loss"))
    if rates:
        drawn.append(charts.lines("Learning rate", rates, "learning rate"))
    if precisions:
        drawn.append(charts.lines("AP on the test set", precisions, "AP (%)", dots=True))
    return {"charts": drawn, "rows": [_speed(run) for run in runs]}


def _speed(run: LoggedRun) -> dict[str, Any]:
    """What a run's table row says."""
    timed = [line for line in run.lines if line.get("time")]
    row: dict[str, Any] = {"name": run.name, "training": [], "tests": [
        f"{name}: {speed.rate:.2f} pictures/s in each process, in {speed.dtype} "
        f"({speed.images} pictures)"
        for name, speed in run.speeds.items()
    ]}  # fmt: skip
    if timed:
        seconds = median(line["time"] for line in timed)
        batch = run.cfg.SOLVER.IMS_PER_BATCH
        waiting = sum(line.get("data_time", 0.0) for line in timed) / sum(
            line["time"] for line in timed
        )
        row["training"] = [
            f"{timed[-1]['iteration']} iterations of {batch} pictures",
            f"{seconds:.3f} s an iteration (median)",
            f"{batch / seconds:.2f} pictures/s",
            f"{100 * waiting:.0f} % of the time waiting for data",
        ]
        if waiting > 0.2:
            row["advice"] = (
                f"{run.name} waits for its pictures: raise DATALOADER.NUM_WORKERS if there are "
                "cores left."
            )
        memory = [line["max_memory_mib"] for line in timed if "max_memory_mib" in line]
        if memory:
            row["training"].append(f"{max(memory):.0f} MiB of GPU memory")
    return row
