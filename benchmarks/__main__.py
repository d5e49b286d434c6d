"""Measure detlite against torchvision and others: operators, models, data loading, evaluation.

    python -m benchmarks ops
    python -m benchmarks ops --device cuda --json ops.json --only nms
    python -m benchmarks ops --fallback
    python -m benchmarks model --detections 12 --threshold 0.5
    python -m benchmarks train --config configs/nuclei_mask_rcnn_R_18_FPN.yaml --real --batch 4
    python -m benchmarks train --objects 500
    python -m benchmarks gpu --output gpu
    python -m benchmarks data --workers 0 2
    python -m benchmarks growth --only start check
    python -m benchmarks eval --images 5000

Prints a table. --json writes the rows, such as {"case", "device", "dtype", "detlite_ms",
"torchvision_ms", "ratio", ...}, and --markdown writes the table with the machine and the command.
"""

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

from detlite.apps.allocator import keep_freed_memory
from detlite.config import ConfigError
from detlite.data import DataError
from detlite.modeling.precision import native_formats

from .data.evaluation import benchmark_evaluation
from .data.growth import benchmark_growth
from .data.loading import benchmark_data
from .models.gpu import GpuBenchmark
from .models.inference import MODES, Inference, benchmark_model
from .models.training import DTYPES, Training, benchmark_train
from .operators.fallback import benchmark_fallback
from .operators.measure import benchmark_ops
from .report import environment, header, line, markdown, phase_table

COCO = "coco/mask_rcnn_R_50_FPN_1x.yaml"
Args = argparse.Namespace


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: command-line arguments; None: the arguments of the process.

    Returns:
        The exit status: 0, or 2 for invalid options, configs or data.
    """
    args = _parser().parse_args(arguments)
    try:
        if folder := getattr(args, "output", None):
            folder.mkdir(parents=True, exist_ok=True)
            args.json, args.markdown = folder / "gpu.json", folder / "gpu.md"
        _check(args)
        if args.threads or args.cpu_time:
            torch.set_num_threads(1 if args.cpu_time else args.threads)
        args.clock = time.process_time if args.cpu_time else time.perf_counter
        if args.freed_memory == "keep":
            keep_freed_memory()
        machine = environment(args.device) + (", CPU time" if args.cpu_time else "")
        print(machine)
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
            words = sys.argv[1:] if arguments is None else arguments
            command = f"python -m benchmarks {shlex.join(words)}"
            args.markdown.write_text(markdown(rows, machine, command))
    except (ConfigError, DataError, OptionError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


class OptionError(ValueError):
    """An invalid value of an option."""


def _check(args: Args) -> None:
    if args.device == "cuda" and not torch.cuda.is_available():
        raise OptionError("--device cuda: torch finds no CUDA device")
    if args.cpu_time and args.device == "cuda":
        raise OptionError("--cpu-time does not measure --device cuda")
    for name in ("threads", "batch", "objects", "detections", "turns", "images", "rounds"):
        if getattr(args, name, None) is not None and getattr(args, name) < 1:
            raise OptionError(f"--{name} {getattr(args, name)}: must be at least 1")
    if args.cpu_time and any(getattr(args, "workers", [])):
        raise OptionError("--cpu-time does not measure loader processes: use --workers 0")
    for name in ("json", "markdown"):
        if file := getattr(args, name, None):
            try:  # fail before the measurement, which takes minutes
                file.touch()
            except OSError as error:
                raise OptionError(f"--{name} {file}: {error.strerror}") from error


def _ops(args: Args) -> Iterable[Any]:
    if args.fallback and args.device != "cpu":
        raise OptionError("--fallback needs --device cpu")
    rows: Iterable[Any] = (
        benchmark_fallback(args.only, args.seconds, args.clock)
        if args.fallback
        else benchmark_ops(args.device, args.only, args.seconds, args.clock)
    )
    is_empty = True
    for row in rows:
        is_empty = False
        yield row
    if is_empty:
        raise OptionError(f"--only {' '.join(args.only)}: no name of a case contains this")


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
    names = {" ".join(mode): mode for mode in MODES}
    if args.only:
        modes = [mode for name, mode in names.items() if any(part in name for part in args.only)]
    else:
        modes = [mode for mode in MODES if _is_fast(mode[1].split()[-1], args.device)]
    if not modes:
        raise OptionError(
            f"--only {' '.join(args.only)}: no name of a mode contains this; choose from "
            f"{', '.join(names)}"
        )
    return benchmark_model(_inference(args), args.turns, tuple(modes), args.clock)


def _train(args: Args) -> Iterable[Any]:
    training = _training(args)
    dtypes = args.dtype or tuple(dtype for dtype in DTYPES if _is_fast(dtype, args.device))
    return benchmark_train(training, args.turns, dtypes=tuple(dtypes), clock=args.clock)


def _gpu(args: Args) -> Iterable[Any]:
    batches, steps = tuple(args.batches), args.turns
    return GpuBenchmark(
        args.config, tuple(args.opts), args.device, args.short, batches, args.images, steps,
        60.0 * args.minutes, args.dtype,
    ).rows()  # fmt: skip


def _is_fast(dtype: str, device: str) -> bool:
    """Return True if a data type is measured by default: not bfloat16 without hardware support."""
    return dtype != "bfloat16" or "bfloat16" in native_formats(torch.device(device))


def _data(args: Args) -> Iterable[Any]:
    return benchmark_data(
        args.config, args.opts, args.workers, args.real, args.batch, args.images, args.turns,
        args.clock,
    )  # fmt: skip


def _growth(args: Args) -> Iterable[Any]:
    return benchmark_growth(args.only, args.scale)


def _eval(args: Args) -> Iterable[Any]:
    return benchmark_evaluation(args.images, args.detections, args.turns, args.libraries)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="BENCHMARK")

    def command(
        name: str, rows: Callable[[Args], Iterable[Any]], task: str
    ) -> argparse.ArgumentParser:
        own = commands.add_parser(name, help=task, description=task)
        own.set_defaults(rows=rows)
        own.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
        own.add_argument("--threads", type=int, help="CPU threads (default: torch's number)")
        own.add_argument(
            "--cpu-time",
            action="store_true",
            help="measure the CPU time of one thread, for a machine with other work",
        )
        own.add_argument(
            "--freed-memory",
            choices=("keep", "return"),
            default="return" if name == "train" else "keep",
            help="keep freed memory in the process or return it to the system, for all libraries "
            "(default: the same as the commands of detlite)",
        )
        own.add_argument("--json", type=Path, metavar="FILE", help="file for the rows")
        own.add_argument("--markdown", type=Path, metavar="FILE", help="file for the table")
        if name not in ("ops", "growth"):
            own.add_argument("--turns", type=int, default=5, help="timed calls of each library")
        if name not in ("ops", "growth", "eval"):
            own.add_argument("--config", default=COCO, help="config of a Mask R-CNN")
            own.add_argument("opts", nargs="*", metavar="KEY VALUE", help="override config keys")
        return own

    def add_size(own: argparse.ArgumentParser, batch: int) -> None:
        own.add_argument("--size", type=int, nargs=2, default=(800, 1216), metavar=("H", "W"))
        own.add_argument("--batch", type=int, default=batch, help="images per call")

    own = command("ops", _ops, "operators")
    own.add_argument(
        "--only", nargs="+", default=[], metavar="TEXT", help="cases whose names contain a text"
    )
    own.add_argument("--seconds", type=float, default=3.0, help="seconds per case")
    own.add_argument(
        "--fallback", action="store_true", help="compare the fallback operators with the kernels"
    )

    own = command("model", _model, "inference, from an image to run-length encoded masks")
    add_size(own, batch=1)
    own.add_argument("--only", nargs="+", metavar="TEXT", help="modes whose names contain a text")
    own.add_argument("--detections", type=int, default=100, help="detections per image")
    own.add_argument("--threshold", type=float, default=0.05, help="score threshold")

    own = command("train", _train, "training steps and their phases")
    add_size(own, batch=2)
    own.add_argument("--objects", type=int, default=20, help="objects per image")
    own.add_argument("--real", action="store_true", help="use images of the config's training set")
    own.add_argument(
        "--dtype", nargs="+", choices=DTYPES, help="(default: all that the hardware supports)"
    )

    own = command("gpu", _gpu, "training, inference and evaluation on a GPU")
    own.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="for the results")
    own.add_argument("--short", type=int, default=800, help="short side of the images")
    own.add_argument(
        "--batches", type=int, nargs="+", default=[16, 2, 12, 8], help="images per training step"
    )
    own.add_argument("--images", type=int, default=640, help="JPEGs to load and evaluate")
    own.add_argument("--minutes", type=float, default=7.0, help="start no measurement later")
    own.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    own.set_defaults(device="cuda", turns=20)

    own = command("data", _data, "the training loader")
    own.add_argument("--real", action="store_true", help="use images of the config's training set")
    own.add_argument("--workers", type=int, nargs="+", default=[0, 2], help="loader processes")
    own.add_argument("--batch", type=int, default=2, help="images per batch")
    own.add_argument("--images", type=int, default=32, help="images per turn")

    own = command("growth", _growth, "CPU time and memory with the size of the input")
    own.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="as for ops")
    own.add_argument("--scale", type=float, default=1.0, help="factor of all sizes")

    own = command("eval", _eval, "COCO evaluation of generated results")
    own.add_argument("--images", type=int, default=5000, help="images of the dataset")
    own.add_argument("--detections", type=int, default=100, help="detections per image")
    own.add_argument(
        "--libraries",
        nargs="+",
        choices=("detlite", "pycocotools", "hotcoco"),
        default=("detlite", "pycocotools", "hotcoco"),
        help="libraries to compare with detlite, if they are installed",
    )
    own.set_defaults(turns=1)

    return parser


if __name__ == "__main__":
    sys.exit(main())
