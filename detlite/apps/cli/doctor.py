"""What is installed, whether each operator computes what it should, and what is wrong.

    detlite doctor

Each operator runs, on each device, on a small input whose result follows from a formula.

Exit status: 0; 1 when an operator is wrong.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from detlite.apps.doctor import devices, facts, operator_errors, problems
from detlite.ops import has_kernels


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, without its name, or the process's own; returns the exit status."""
    parser = argparse.ArgumentParser(
        "detlite doctor",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args(arguments)
    for name, fact in facts().items():
        print(f"{name:9} {fact}")
    wrong = 0
    for device in devices():
        print(f"\noperators on {device}{'' if has_kernels(device) else ', in plain torch'}")
        for operator, error in operator_errors(device).items():
            print(f"  {operator:22} {error or 'right'}")
            wrong += bool(error)
    print()
    for problem in problems():
        print(f"problem: {problem}")
    if wrong:
        print(
            f"problem: {wrong} operators are wrong: build detlite anew against this torch "
            "(pip install --no-build-isolation --force-reinstall --no-deps), and if that does not "
            "help, report it with all of the above"
        )
    elif not problems():
        print("nothing is wrong")
    return 1 if wrong else 0
