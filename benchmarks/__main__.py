"""Measures detlite against torchvision: operators, inference, training, loading, and their growth.

    python -m benchmarks ops
    python -m benchmarks ops --device cuda --json ops.json --only nms
    python -m benchmarks ops --plain
    python -m benchmarks model --detections 12 --threshold 0.5
    python -m benchmarks train --config configs/nuclei_mask_rcnn_R_18_FPN.yaml --real --batch 4
    python -m benchmarks train --objects 500 --trace step.json
    python -m benchmarks data --workers 0 2
    python -m benchmarks index --images 120000 --batches 10000
    python -m benchmarks eval --images 5000
    python -m benchmarks scaling --plot benchmarks/results/models/scaling.png

Prints a table, and writes it where asked: as JSON, a list of rows such as {"case", "device",
"dtype", "detlite_ms", "torchvision_ms", "ratio", ...}, or as docs/benchmarks.md shows it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from detlite.apps.batch_predict.allocator import keep_freed_memory
from detlite.config import ConfigError
from detlite.data import DataError
from detlite.modeling.precision import has_bfloat16

from . import (
    Inference,
    Training,
    benchmark_data,
    benchmark_evaluation,
    benchmark_index,
    benchmark_model,
    benchmark_ops,
    benchmark_plain,
    benchmark_scaling,
    benchmark_train,
    plot_scaling,
    write_trace,
)
from .models.inference import WAYS
from .models.scaling import AXES
from .models.training import DTYPES
from .report import environment, header, line, markdown, phase_table

COCO = "coco/mask_rcnn_R_50_FPN_1x.yaml"
Args = argparse.Namespace


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, without its name, or the process's own.

    Returns:
        The exit status: 0, or 2 for what the user can mend.
    """
    args = _parser().parse_args(arguments)
    try:
        _check(args)
        if args.threads or args.cpu_time:
            torch.set_num_threads(1 if args.cpu_time else args.threads)
        args.clock = time.process_time if args.cpu_time else time.perf_counter
        if args.freed_memory == "keep":
            keep_freed_memory()
        measured_on = environment(args.device) + (", CPU time" if args.cpu_time else "")
        print(measured_on)
        rows: list[Any] = []
        for row in args.rows(args):
            if not rows:
                print(header(type(row)))
            print(line(row), flush=True)
            rows.append(row)
        if hasattr(rows[0], "phases"):
            print(phase_table(rows))
        if args.json:
            content = [dataclasses.asdict(row) for row in rows]
            args.json.write_text(json.dumps(content, indent=2) + "\n")
        if args.markdown:
            command = f"python -m benchmarks {shlex.join(sys.argv[1:] if arguments is None else arguments)}"
            args.markdown.write_text(markdown(rows, measured_on, command))
        if getattr(args, "plot", None):
            plot_scaling(rows, args.plot)
    except (ConfigError, DataError, OptionError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


class OptionError(ValueError):
    """Options that cannot be followed."""


def _check(args: Args) -> None:
    if args.device == "cuda" and not torch.cuda.is_available():
        raise OptionError("--device cuda, but torch sees no CUDA device")
    if args.cpu_time and args.device == "cuda":
        raise OptionError("--cpu-time says nothing of --device cuda")
    for name in ("threads", "batch", "objects", "detections", "turns", "images"):
        if getattr(args, name, None) is not None and getattr(args, name) < 1:
            raise OptionError(f"--{name} {getattr(args, name)}: at least one is needed")
    if args.cpu_time and any(getattr(args, "workers", [])):
        raise OptionError("--cpu-time does not see loader processes: --workers 0")
    for name in ("json", "markdown", "plot", "trace"):
        if file := getattr(args, name, None):
            try:  # before what takes minutes
                file.touch()
            except OSError as error:
                raise OptionError(f"--{name} {file}: {error.strerror}") from error


def _ops(args: Args) -> Iterable[Any]:
    if args.plain and args.device != "cpu":
        raise OptionError("--plain is measured on the CPU alone")
    rows: Iterable[Any] = (
        benchmark_plain(args.only, args.seconds, args.clock)
        if args.plain
        else benchmark_ops(args.device, args.only, args.seconds, args.clock)
    )
    found = False
    for row in rows:
        found = True
        yield row
    if not found:
        raise OptionError(f"--only {' '.join(args.only)}: no case has that in its name")


def _inference(args: Args) -> Inference:
    return Inference(
        args.config, tuple(args.opts), args.batch, tuple(args.size), args.detections,
        args.threshold, args.device,
    )  # fmt: skip


def _training(args: Args) -> Training:
    return Training(
        args.config, tuple(args.opts), args.batch, tuple(args.size), args.objects, args.real,
        args.device,
    )  # fmt: skip


def _model(args: Args) -> Iterable[Any]:
    names = {" ".join(way): way for way in WAYS}
    if args.only:
        ways = [way for name, way in names.items() if any(part in name for part in args.only)]
    else:
        ways = [way for way in WAYS if _is_fast(way[1].split()[-1], args.device)]
    if not ways:
        raise OptionError(
            f"--only {' '.join(args.only)}: no way has that in its name; they are "
            f"{', '.join(names)}"
        )
    return benchmark_model(_inference(args), args.turns, tuple(ways), args.clock)


def _train(args: Args) -> Iterable[Any]:
    training = _training(args)
    dtypes = args.dtype or tuple(dtype for dtype in DTYPES if _is_fast(dtype, args.device))
    yield from benchmark_train(training, args.turns, dtypes=tuple(dtypes), clock=args.clock)
    if args.trace:
        write_trace(training, dtypes[0], args.trace)


def _is_fast(dtype: str, device: str) -> bool:
    """Whether a format is measured without being asked for: bfloat16 only where it is native."""
    return dtype != "bfloat16" or has_bfloat16(torch.device(device))


def _data(args: Args) -> Iterable[Any]:
    return benchmark_data(
        args.config, args.opts, args.workers, args.real, args.batch, args.images, args.turns,
        args.clock,
    )  # fmt: skip


def _index(args: Args) -> Iterable[Any]:
    return benchmark_index(args.images, args.batches, args.loaders, args.folder)


def _eval(args: Args) -> Iterable[Any]:
    return benchmark_evaluation(args.images, args.detections, args.turns)


def _scaling(args: Args) -> Iterable[Any]:
    inference = Inference(args.config, tuple(args.opts), size=tuple(args.size), device=args.device)
    training = Training(
        args.config, tuple(args.opts), batch=1, size=tuple(args.size), device=args.device
    )
    axes = {axis: AXES[axis] for axis in args.axes}
    return benchmark_scaling(inference, training, axes, args.turns, args.clock)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="WHAT")

    def command(name: str, rows: Callable[[Args], Iterable[Any]]) -> argparse.ArgumentParser:
        own = commands.add_parser(name, help=str(_MEANING[name]), description=_MEANING[name])
        own.set_defaults(rows=rows)
        own.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
        own.add_argument("--threads", type=int, help="of the CPU; left out: all that torch uses")
        own.add_argument(
            "--cpu-time",
            action="store_true",
            help="one thread, and the time that it ran: for a machine that is shared",
        )
        own.add_argument(
            "--freed-memory",
            choices=("keep", "return"),
            default="return" if name == "train" else "keep",
            help="kept by the process, or given back to the system; the same for all libraries. "
            "Left out: as detlite's own command does",
        )
        own.add_argument("--json", type=Path, metavar="FILE", help="where to write the rows")
        own.add_argument("--markdown", type=Path, metavar="FILE", help="where to write the table")
        if name not in ("ops", "index"):
            own.add_argument("--turns", type=int, default=5, help="calls of each that count")
        if name not in ("ops", "index", "eval"):
            own.add_argument("--config", default=COCO, help="of a Mask R-CNN")
            own.add_argument("opts", nargs="*", metavar="KEY VALUE", help="override config keys")
        return own

    def pictures(own: argparse.ArgumentParser, batch: int | None) -> None:
        own.add_argument("--size", type=int, nargs=2, default=(800, 1216), metavar=("H", "W"))
        if batch:
            own.add_argument("--batch", type=int, default=batch, help="pictures of a call")

    own = command("ops", _ops)
    own.add_argument("--only", nargs="+", default=[], metavar="NAME", help="cases with this in it")
    own.add_argument("--seconds", type=float, default=3.0, help="for each case")
    own.add_argument(
        "--plain", action="store_true", help="beside them in plain torch (docs/devices.md)"
    )

    own = command("model", _model)
    pictures(own, batch=1)
    own.add_argument("--only", nargs="+", metavar="NAME", help="ways with this in their name")
    own.add_argument("--detections", type=int, default=100, help="that come out of a picture")
    own.add_argument("--threshold", type=float, default=0.05, help="of their scores")

    own = command("train", _train)
    pictures(own, batch=2)
    own.add_argument("--objects", type=int, default=20, help="in a picture")
    own.add_argument("--real", action="store_true", help="pictures of the config's training set")
    own.add_argument(
        "--dtype", nargs="+", choices=DTYPES, help="left out: those that the processor is fast at"
    )
    own.add_argument("--trace", type=Path, metavar="FILE", help="what chrome://tracing shows")

    own = command("data", _data)
    own.add_argument("--real", action="store_true", help="pictures of the config's training set")
    own.add_argument("--workers", type=int, nargs="+", default=[0, 2], help="loader processes")
    own.add_argument("--batch", type=int, default=2, help="pictures of a batch")
    own.add_argument("--images", type=int, default=32, help="of a turn")

    own = command("index", _index)
    own.add_argument("--images", type=int, default=120_000, help="of the data set")
    own.add_argument("--batches", type=int, default=0, help="of two images, loaded for each way")
    own.add_argument("--loaders", type=int, default=4, help="loader processes")
    own.add_argument("--folder", type=Path, help="where the set is kept, to be used again")

    own = command("eval", _eval)
    own.add_argument("--images", type=int, default=5000, help="of the data set")
    own.add_argument("--detections", type=int, default=100, help="in an image")
    own.set_defaults(turns=1)

    own = command("scaling", _scaling)
    pictures(own, batch=None)
    own.add_argument("--axes", nargs="+", default=list(AXES), choices=list(AXES))
    own.add_argument("--plot", type=Path, metavar="FILE", help="where to draw it")
    return parser


_MEANING = {
    "ops": "the operators",
    "model": "inference: a picture in, run-length encoded masks out",
    "train": "a training step, and where its time goes",
    "data": "the loader alone",
    "index": "a large data set opened, beside torchvision and pycocotools: time and memory",
    "eval": "COCO's metrics of a generated data set, beside pycocotools'",
    "scaling": "an image's cost against its size, boxes, classes, objects and batch",
}

if __name__ == "__main__":
    sys.exit(main())
