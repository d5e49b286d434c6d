"""Times trained models and exported files on the same pictures, each in turn.

    python benchmarks/models/trained_models.py model_final.pth small.openvino --pictures photos

Of each picture the detection alone, in a batch of one, after it was read and resized: backbone to
masks in their boxes. What a file detects decides how long its heads take, so take pictures like
those that it is for. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from detlite.apps.batch_predict.input_sources import list_pictures
from detlite.conversion.checkpoint.loading import build_model_from_checkpoint
from detlite.inference.predictor import Predictor, build_predictor, read_predictor


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    if args.threads:
        torch.set_num_threads(args.threads)
    pictures = list_pictures(args.pictures)
    pictures = pictures[:: max(len(pictures) // args.count, 1)][: args.count]
    predictors = {
        name: predictor for file in args.files for name, predictor in _read(file, args.dtypes)
    }
    seconds: dict[str, list[float]] = {name: [] for name in predictors}
    for _ in range(args.rounds):
        for picture in pictures:
            for name, predictor in predictors.items():
                loaded = [predictor.load(picture)]
                predictor.detect(loaded)
                start = time.perf_counter()
                predictor.detect(loaded)
                seconds[name].append(time.perf_counter() - start)
    print(f"{len(pictures)} pictures, {args.rounds} rounds, {torch.get_num_threads()} threads")
    for name, own in seconds.items():
        milliseconds = [1000 * one for one in own]
        print(
            f"{name}: median {statistics.median(milliseconds):.0f} ms, "
            f"mean {statistics.mean(milliseconds):.0f} ms, least {min(milliseconds):.0f} ms"
        )
    return 0


def _read(file: Path, dtypes: Sequence[str]) -> Iterator[tuple[str, Predictor]]:
    """The predictor of a file of `detlite export`, or those of a checkpoint."""
    if file.suffix != ".pth":
        yield str(file), read_predictor(file)
        return
    for dtype in dtypes:
        opts = ["MODEL.DEVICE", "cpu", "DTYPE", dtype]
        yield f"{file} in {dtype}", build_predictor(*build_model_from_checkpoint(file, opts))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+", help="checkpoints .pth, exported files")
    parser.add_argument(
        "--pictures", nargs="+", required=True, help="files, folders, lists: as `detlite predict`"
    )
    parser.add_argument("--count", type=int, default=20, help="so many of them, evenly (20)")
    parser.add_argument("--rounds", type=int, default=3, help="over all pictures (3)")
    parser.add_argument(
        "--dtypes", nargs="+", default=["auto"], help="of a checkpoint, as DTYPE (auto)"
    )
    parser.add_argument("--threads", type=int, default=0, help="of the CPU; 0: torch's own number")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
