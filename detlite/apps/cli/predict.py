"""Detect objects in pictures with a trained checkpoint.

    detlite predict --weights model_final.pth --input photos extra.png --output found
    detlite predict --weights model_final.pth --input 'photos/**/*.jpg' --output found --format csv
    torchrun --nproc-per-node 2 -m detlite predict --weights model_final.pth --input list.txt \\
        --output found --format parquet --draw none

--input takes files, folders, globs, text files that list paths or addresses, and addresses; or a
video, or the number of a camera.

In the output folder:
    drawn/0001_<name>.jpg   each picture with its detections; 1 is the picture's image_id
    results.json            all detections as COCO results, or results.csv
    images.json             which file has which image_id, and the categories, as a COCO file
                            without annotations: COCO("images.json").loadRes("results.json")
    detections/*.parquet    detections of --format parquet
    <name>.mp4              of a video, in place of drawn pictures
    manifest.json, shards/  the command, and which pictures are done or unreadable

Started again, the same command goes on where it was interrupted, with any number of processes.

Exit status: 0; 1 when a picture could not be read (it is named and skipped; under torchrun this is
0); 2 when nothing could be done; 130 when interrupted by Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from torch import Tensor
from tqdm import tqdm

from detlite.apps.batch_predict.allocator import keep_freed_memory
from detlite.apps.batch_predict.batch_predict import load_predictor, predict_each
from detlite.apps.batch_predict.input_sources import list_pictures, stem_of
from detlite.apps.batch_predict.manifest import clear, open_run
from detlite.apps.batch_predict.result_files import SUFFIXES, check_format
from detlite.apps.batch_predict.tracking import Tracker
from detlite.apps.batch_predict.video_io import Video, is_video
from detlite.apps.batch_predict.video_predict import check_folder, predict_video
from detlite.apps.batch_predict.work_shards import Run, Totals
from detlite.apps.drawing import draw_detections
from detlite.config import ConfigError
from detlite.conversion.checkpoint.files import CheckpointError
from detlite.data import DataError
from detlite.distributed import torchrun_rank
from detlite.inference.predictor import Prediction, Predictor

DRAWN = "drawn"
DRAW = {"jpeg": ".jpg", "png": ".png", "none": ""}
_JPEG_QUALITY = 90


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, without its name, or the process's own; returns the exit status."""
    args = _parser().parse_intermixed_args(arguments)
    keep_freed_memory()
    try:
        totals = predict(args)
    except (CheckpointError, ConfigError, DataError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:  # pictures and weights have errors of their own
        print(f"error: --output {args.output}: cannot be written to ({error})", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: the same command goes on with the rest", file=sys.stderr)
        return 130
    if totals is None:
        print(f"all is done but for what other processes are at: see {args.output}")
        return 0
    print(
        f"{totals.pictures} pictures done, {totals.unreadable} unreadable, {totals.objects} "
        f"objects: see {args.output}"
    )
    # A process that fails would make torchrun end the others.
    return 1 if totals.unreadable and torchrun_rank() == (0, 1) else 0


def predict(args: argparse.Namespace) -> Totals | None:
    """Does what of a run is not done yet; None where other processes are still at some of it."""
    rank, world_size = torchrun_rank()
    for option in ("batch", "shard", "threads"):
        value = getattr(args, option)
        if value is not None and value < 1:
            raise ConfigError(f"--{option} {value}: must be at least 1")
    if not 0 <= args.threshold <= 1:
        raise ConfigError(f"--threshold {args.threshold:g}: a score is from 0 to 1")
    if args.overwrite and world_size > 1:
        raise ConfigError(
            "--overwrite does not go with several processes, of which one could remove what "
            "another has done: remove the folder yourself, or name another"
        )
    check_format(args.format)
    args.opts += tile_options(args.tile, args.overlap)
    if any(map(is_video, args.input)):
        if len(args.input) > 1 or world_size > 1:
            raise ConfigError("--input: a video stands alone, and one process takes it")
        return predict_frames(args)
    if args.track:
        raise ConfigError("--track follows objects through a video, and --input names none")
    pictures = list_pictures(args.input, args.output / DRAWN)
    predictor = load_predictor(args.weights, args.threshold, args.opts, args.config)
    command = {
        "weights": _content(args.weights),
        "config": args.config and _content(args.config),
        "overrides": args.opts,
        "threshold": args.threshold,
        "draw": args.draw,
    }
    run = open_run(
        args.output, command, pictures, args.format, predictor.categories, args.shard, world_size,
        args.overwrite,
    )  # fmt: skip
    if args.draw != "none":
        (args.output / DRAWN).mkdir(exist_ok=True)
    with tqdm(
        total=len(pictures), initial=run.done(), unit=" pictures", disable=True if rank else None
    ) as bar:
        for shard in run.shards(rank, world_size):
            predict_shard(run, shard, predictor, args, bar)
    return run.complete()


def tile_options(tile: int | None, overlap: float | None) -> list[str]:
    """--tile and --overlap as overrides of the config."""
    if tile is None and overlap is not None:
        raise ConfigError(f"--overlap {overlap} is of tiles: say their side by --tile")
    given = {"TEST.TILE": tile, "TEST.TILE_OVERLAP": overlap}
    return [str(x) for pair in given.items() if pair[1] is not None for x in pair]


def predict_frames(args: argparse.Namespace) -> Totals:
    """Detects in the frames of a video, to its end or Ctrl-C."""
    drawn = args.draw != "none"
    check_folder(args.output, args.input[0], args.overwrite, drawn)
    predictor = load_predictor(args.weights, args.threshold, args.opts, args.config)
    with Video(args.input[0]) as video:
        tracker = Tracker(float(video.rate)) if args.track else None
        if args.overwrite:  # now that nothing is missing
            clear(args.output)
        args.output.mkdir(parents=True, exist_ok=True)
        with tqdm(total=video.count or None, unit=" frames", disable=None) as bar:
            totals, problem = predict_video(
                predictor, video, args.output, args.format, drawn, args.batch, args.threads,
                tracker, bar.update,
            )  # fmt: skip
    if problem:
        print(f"skipped: {problem}", file=sys.stderr)
    return totals


def predict_shard(
    run: Run, shard: int, predictor: Predictor, args: argparse.Namespace, bar: tqdm
) -> None:
    """Detects in what is left of a shard, notes it picture by picture, and finishes the shard."""

    def draw(image_id: int, picture: Tensor, found: Prediction) -> None:
        name = f"{image_id:04d}_{stem_of(run.pictures[image_id - 1])}{DRAW[args.draw]}"
        drawn = draw_detections(picture, found, predictor.categories, min_score=0)
        drawn.save(run.folder / DRAWN / name, quality=_JPEG_QUALITY)  # which PNG ignores

    with run.journal(shard) as journal:
        places = run.places(shard)[journal.done :]
        bar.n = run.done() + journal.done  # what other processes have finished, too
        bar.refresh()
        pictures, ids = run.pictures[places.start : places.stop], [place + 1 for place in places]
        drawing = None if args.draw == "none" else draw
        for done in predict_each(predictor, pictures, ids, args.batch, args.threads, drawing):
            if "problem" in done:
                tqdm.write(f"skipped: {done['problem']}", file=sys.stderr)
            journal.add(json.dumps(done))
            bar.update()
    run.finish(shard)


def _content(name: str) -> str:
    """The SHA-256 of a file, wherever it lies; a name that is no file, as it is."""
    if not Path(name).is_file():
        return name
    digest = sha256()
    with Path(name).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return f"a file of SHA-256 {digest.hexdigest()[:16]}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "detlite predict", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", required=True, help="checkpoint, or exported model")
    parser.add_argument(
        "--config", "--config-file", help="YAML file of the model, for weights without a config"
    )
    parser.add_argument(
        "--input",
        required=True,
        nargs="+",
        metavar="PICTURES",
        help="files, folders, globs, lists (.txt) or addresses (http, https); or a video, or the "
        "number of a camera",
    )
    parser.add_argument("--output", required=True, type=Path, help="folder for what is found")
    parser.add_argument(
        "--threshold", type=float, default=0.5, help="lowest score of a detection (0.5)"
    )
    parser.add_argument(
        "--batch", type=int, default=1, help="pictures of like size that are run together (1)"
    )
    parser.add_argument(
        "--threads", type=int, default=2, help="that read, resize and draw pictures (2)"
    )
    parser.add_argument(
        "--draw", choices=DRAW, default="jpeg", help="how pictures are drawn, if at all (jpeg)"
    )
    parser.add_argument(
        "--format", choices=SUFFIXES, default="coco", help="file of the detections (coco)"
    )
    parser.add_argument(
        "--shard", type=int, metavar="N", help="pictures that one process does in one go (1000)"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="begin anew where the folder holds another run"
    )
    parser.add_argument(
        "--tile", type=int, metavar="SIDE", help="cut large pictures into tiles of so many pixels"
    )
    parser.add_argument(
        "--overlap", type=float, metavar="SHARE", help="of a tile's side with the next one (0.2)"
    )
    parser.add_argument(
        "--track", action="store_true", help="give objects ids that they keep through a video"
    )
    parser.add_argument(
        "opts", nargs="*", metavar="KEY VALUE", help="overrides of the checkpoint's config"
    )
    return parser
