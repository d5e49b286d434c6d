"""Measures the operators against torchvision's.

    python tools/benchmark.py ops
    python tools/benchmark.py ops --device cuda --json ops.json --only nms

Prints a table, and writes it as JSON where asked: a list of {"case", "device", "dtype",
"detlite_ms", "torchvision_ms", "ratio", ...}.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path

import torch
import torchvision

from detlite.benchmark import Row, benchmark_ops

HEADER = (
    f"{'case':26} {'dtype':9} {'detlite':>10} {'torchvision':>12} {'ratio':>7} "
    f"{'GB/s':>6} {'copy GB/s':>10}"
)


def main() -> int:
    """Returns the exit status: 0, or 2 for what the user can mend."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["ops"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument(
        "--threads", type=int, help="of the CPU; all that torch would use if not given"
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="cases with this in it"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="for each case")
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="one thread, and the time that it ran: for a machine that is shared",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the rows")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("error: --device cuda, but torch sees no CUDA device", file=sys.stderr)
        return 2
    if args.cpu_time and args.device == "cuda":
        print("error: --cpu-time says nothing of --device cuda", file=sys.stderr)
        return 2
    if args.threads is not None and args.threads < 1:
        print(f"error: --threads {args.threads}: at least one is needed", file=sys.stderr)
        return 2
    if args.json:
        try:  # before what takes minutes
            args.json.touch()
        except OSError as error:
            print(f"error: --json {args.json}: {error.strerror}", file=sys.stderr)
            return 2
    if args.threads or args.cpu_time:
        torch.set_num_threads(1 if args.cpu_time else args.threads)

    print(
        f"torch {torch.__version__}, torchvision {torchvision.__version__}, "
        f"{torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}"
    )
    print(HEADER)
    rows = []
    clock = time.process_time if args.cpu_time else time.perf_counter
    for row in benchmark_ops(args.device, args.only, args.seconds, clock):
        print(formatted(row), flush=True)
        rows.append(dataclasses.asdict(row))
    if not rows:
        print(f"error: --only {' '.join(args.only)}: no case has that in its name", file=sys.stderr)
        return 2
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


def formatted(row: Row) -> str:
    """One line of the table."""
    rates = [f"{r:.1f}" if r is not None else "" for r in (row.gb_per_s, row.copy_gb_per_s)]
    return (
        f"{row.case:26} {row.dtype:9} {row.detlite_ms:8.2f} ms {row.torchvision_ms:9.2f} ms "
        f"{row.ratio:7.1f} {rates[0]:>6} {rates[1]:>10}"
    )


if __name__ == "__main__":
    sys.exit(main())
