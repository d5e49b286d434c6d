"""Time trained models and exported files on the same images, interleaved.

    python -m benchmarks.models.trained_models model_final.pth small.openvino --images photos

It measures only the detection, from the resized image to masks in their boxes, with one image per
batch. The time of the heads depends on the number of detections, so use images that are typical for
the models, and a machine without other work.
"""

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from detlite.apps.batch_predict.input_sources import list_images
from detlite.checkpoint.loading import build_model_from_checkpoint
from detlite.inference.predictor import Predictor, build_predictor


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    args = _parser().parse_args(arguments)
    if args.threads:
        torch.set_num_threads(args.threads)
    images = list_images(args.images)
    images = images[:: max(len(images) // args.count, 1)][: args.count]
    predictors = {
        name: predictor for file in args.files for name, predictor in _read(file, args.dtypes)
    }
    seconds: dict[str, list[float]] = {name: [] for name in predictors}
    for _ in range(args.rounds):
        for image in images:
            for name, predictor in predictors.items():
                loaded = [predictor.load(image)]
                predictor.detect(loaded)
                start = time.perf_counter()
                predictor.detect(loaded)
                seconds[name].append(time.perf_counter() - start)
    print(f"{len(images)} images, {args.rounds} rounds, {torch.get_num_threads()} threads")
    for name, times in seconds.items():
        milliseconds = [1000 * time for time in times]
        print(
            f"{name}: median {statistics.median(milliseconds):.0f} ms, "
            f"mean {statistics.mean(milliseconds):.0f} ms, minimum {min(milliseconds):.0f} ms"
        )
    return 0


def _read(file: Path, dtypes: Sequence[str]) -> Iterator[tuple[str, Predictor]]:
    """Yield the predictor of an exported file, or one per data type of a checkpoint."""
    if file.suffix != ".pth":
        yield str(file), Predictor.from_checkpoint(file)
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
        "--images",
        nargs="+",
        required=True,
        help="files, folders or lists, as for `detlite predict`",
    )
    parser.add_argument(
        "--count", type=int, default=20, help="number of images, evenly chosen (20)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds over all images (3)")
    parser.add_argument(
        "--dtypes",
        nargs="+",
        default=["auto"],
        help="data types of checkpoints, values of DTYPE (auto)",
    )
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 for torch's default")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
