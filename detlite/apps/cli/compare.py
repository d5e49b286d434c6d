"""Print a table of runs: the config keys in which they differ, and their metrics.

    detlite compare output/cells output/cells_larger
    detlite compare output/cells_seed* --format markdown

Runs that differ by SEED only are one row, with the mean and the standard deviation of each metric.
`detlite report` compares the detections of runs.
"""

from argparse import Namespace
from pathlib import Path

from detlite.apps.cli.options import option

OPTIONS = (
    option("runs", "RUN", "output folders of `detlite train` or `detlite test`", nargs="+",
           type=Path),
    option("--format", None, "format of the table", "text", choices=["text", "markdown", "csv"]),
)  # fmt: skip


def run(args: Namespace) -> int:
    from detlite.apps.report.run_table import format_rows, run_table
    from detlite.apps.report.runs import read_run, run_names

    runs = list(map(read_run, args.runs, run_names(args.runs)))
    print(format_rows(run_table(runs), args.format))
    return 0
