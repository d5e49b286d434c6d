"""Table of runs: the config keys in which they differ, and their metrics with seeds grouped."""

import csv
import io
from collections.abc import Sequence
from statistics import mean, stdev
from textwrap import shorten

from detlite.config.loading import flatten

from .runs import PLOTTED, TITLES, Run

# Keys that tell runs of the same settings apart.
_IGNORED = {"OUTPUT_DIR", "SEED"}
_MAX_WIDTH = 60  # characters of a value


def run_table(runs: Sequence[Run]) -> list[list[str]]:
    """Return a header and a row for each group of runs that differ by the seed only.

    The columns are the runs, the keys of their configs that differ, and the metrics of
    evaluation.json: AP and AP50 or their like in percent, and all metrics of other evaluators as
    they are. A value of several runs is their mean and standard deviation.
    """
    configs = [{key: str(value) for key, value in flatten(run.cfg)} for run in runs]
    names = dict.fromkeys(key for config in configs for key in config)
    keys = [
        key for key in names
        if key not in _IGNORED and len({config.get(key, "") for config in configs}) > 1
    ]  # fmt: skip
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run, config in zip(runs, configs, strict=True):
        groups.setdefault(tuple(config.get(key, "") for key in keys), []).append(run)
    measured = {run.name: _metrics(run) for run in runs}
    metrics = list(dict.fromkeys(name for values in measured.values() for name in values))
    rows = [["run", *keys, *metrics]]
    for settings, group in groups.items():
        columns = [[measured[run.name].get(name) for run in group] for name in metrics]
        shown = [shorten(value, _MAX_WIDTH, placeholder="...") for value in settings]
        rows.append([", ".join(run.name for run in group), *shown, *map(_summarize, columns)])
    return rows


def _metrics(run: Run) -> dict[str, float]:
    """Return the metrics of the table by name; the name of a dataset is omitted if it is alone."""
    found: dict[str, float] = {}
    for dataset, kinds in run.evaluation.items():
        prefix = f"{dataset} " if len(run.evaluation) > 1 else ""
        for kind, values in kinds.items():
            for name, value in values.items():
                if not isinstance(value, int | float):
                    continue
                if name in PLOTTED:
                    found[f"{prefix}{kind} {name} (%)"] = 100 * value
                elif kind not in TITLES:
                    found[f"{prefix}{kind} {name}"] = value
    return found


def _summarize(values: Sequence[float | None]) -> str:
    """Format the mean of the known values, and their standard deviation if there are several."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    digits = 1 if mean(known) >= 1 else 4
    text = f"{mean(known):.{digits}f}"
    return text if len(known) == 1 else f"{text} ± {stdev(known):.{digits}f}"


def format_rows(rows: Sequence[Sequence[str]], form: str) -> str:
    """Format a table as "text", "markdown" or "csv"."""
    if form == "csv":
        stream = io.StringIO()
        csv.writer(stream, lineterminator="\n").writerows(rows)
        return stream.getvalue().rstrip("\n")
    if form == "markdown":
        rows = [[cell.replace("|", "\\|") for cell in row] for row in rows]
        rows = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [map(str.ljust, row, widths) for row in rows]
    return "\n".join("  ".join(line).rstrip() for line in lines)
