"""A run of `detlite predict`: images shard by shard, or the frames of a video."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from torch import Tensor
from tqdm import tqdm

from detlite.apps.drawing.detections import draw_detections
from detlite.config import ConfigError
from detlite.distributed import torchrun_rank
from detlite.engine.run_files import run_lock
from detlite.errors import one_line
from detlite.files.atomic_write import atomic_path, make_folder
from detlite.inference.predictor import Prediction, Predictor

from .input_sources import expand_pages, list_images, output_stem
from .measures import write_label_image
from .predict_images import load_predictor, predict_images
from .result_files import check_format
from .sharded_run import ShardedRun, Totals, open_run, remove_results
from .video import Video, build_tracker, check_output, is_video, predict_video

_DRAWN, _LABELS = "drawn", "label_images"
_SUFFIXES = {"jpeg": ".jpg", "png": ".png", "tiff": ".tif"}
_JPEG_QUALITY = 90


@dataclass(frozen=True)
class PredictOptions:
    """The options of `detlite predict`, which describes each of them in its help text."""

    weights: Sequence[str]
    config: str | None
    inputs: Sequence[str]
    output: Path
    overrides: list[str]
    threshold: float | None
    batch_size: int
    threads: int
    draw: str
    format: str
    shard_size: int | None
    overwrite: bool
    tile: int | None
    overlap: float | None
    track: bool
    trust: bool = False
    label_images: str | None = None
    labels: bool | None = None


def predict(options: PredictOptions) -> Totals | None:
    """Start a run, or continue an interrupted one; None while other processes still work on it.

    Raises:
        ConfigError: an option is invalid.
        CheckpointError, DataError: the weights or inputs cannot be read.
    """
    rank, world_size = torchrun_rank()
    if options.overwrite and world_size > 1:
        raise ConfigError(
            "--overwrite needs a single process, because one process could delete what another has "
            f"written: delete {options.output} yourself, or choose another output folder"
        )
    if options.tile is None and options.overlap is not None:
        raise ConfigError(f"--overlap {options.overlap} needs the side of the tiles: add --tile")
    check_format(options.format)
    video = any(map(is_video, options.inputs))
    if video and (len(options.inputs) > 1 or world_size > 1):
        raise ConfigError("--input: a video must be the only input, and needs a single process")
    if video and options.label_images:
        raise ConfigError("--label-images needs images, but --input is a video")
    if options.track and not video:
        raise ConfigError("--track follows objects through a video, but --input names no video")
    if video:
        drawn = options.draw != "none"
        check_output(options.output, options.inputs[0], options.overwrite, drawn)
    overrides = options.overrides
    for key, value in (("TEST.TILE", options.tile), ("TEST.TILE_OVERLAP", options.overlap)):
        overrides = overrides if value is None else [*overrides, key, str(value)]
    predictor = load_predictor(
        options.weights, options.threshold, overrides, options.config, trust=options.trust
    )
    if video:
        return _predict_video(options, predictor)
    # Listed after the config, whose IMPORTS may register readers of other image formats.
    images = list_images(options.inputs, options.output / _DRAWN)
    images = expand_pages(images, predictor.image_options)
    command = {
        "weights": ", ".join(map(_content_of, options.weights)),
        "config": options.config and _content_of(options.config),
        "overrides": overrides,
        "threshold": options.threshold,
        "draw": options.draw,
        "labels": options.labels,
        "label images": options.label_images,
    }
    with run_lock(options.output, rank, world_size):
        run = open_run(
            options.output, command, images, options.format, predictor.categories,
            options.shard_size, world_size, options.overwrite,
        )  # fmt: skip
        for name, used in ((_DRAWN, options.draw != "none"), (_LABELS, options.label_images)):
            if used:
                make_folder(options.output / name)
        hidden, finished = True if rank else None, run.finished_images()
        with tqdm(total=len(images), initial=finished, unit=" images", disable=hidden) as bar:
            for shard in run.unfinished_shards(rank, world_size):
                _predict_shard(run, shard, predictor, options, bar)
        return run.complete()


def _predict_video(options: PredictOptions, predictor: Predictor) -> Totals:
    """Detect objects in the frames of a video until it ends or Ctrl-C is pressed."""
    source, drawn = options.inputs[0], options.draw != "none"
    with Video(source) as video, run_lock(options.output):
        tracker = build_tracker(float(video.rate)) if options.track else None
        if options.overwrite:  # only after the weights and the video could be opened
            remove_results(options.output)
        with tqdm(total=video.count or None, unit=" frames", disable=None) as bar:
            totals, problem = predict_video(
                predictor, video, options.output, options.format, drawn, options.batch_size,
                options.threads, tracker, bar.update, options.labels,
            )  # fmt: skip
    if problem:
        print(f"skipped: {problem}", file=sys.stderr)
    return totals


def _predict_shard(
    run: ShardedRun, shard: int, predictor: Predictor, options: PredictOptions, bar: tqdm
) -> None:
    """Process the images left in a shard, record each in the journal, and finish the shard."""

    def draw(image_id: int, image: Tensor, prediction: Prediction) -> None:
        stem = f"{image_id:04d}_{output_stem(run.images[image_id - 1])}"
        if options.label_images:
            file = run.folder / _LABELS / f"{stem}{_SUFFIXES[options.label_images]}"
            write_label_image(file, prediction)
        if options.draw != "none":
            file = run.folder / _DRAWN / f"{stem}{_SUFFIXES[options.draw]}"
            drawn = draw_detections(image, prediction, predictor.categories, 0, tags=options.labels)
            with atomic_path(file) as temporary:  # PNG ignores the quality
                drawn.save(temporary, options.draw.upper(), quality=_JPEG_QUALITY)

    with run.journal(shard) as journal:
        indices = run.indices(shard)[journal.count :]
        bar.n = run.finished_images() + journal.count  # includes images of other processes
        bar.refresh()
        images, ids = run.images[indices.start : indices.stop], [index + 1 for index in indices]
        for entry in predict_images(
            predictor, images, ids, options.batch_size, options.threads, draw,
            options.format == "measures",
        ):  # fmt: skip
            if "problem" in entry:
                tqdm.write(f"skipped: {one_line(entry['problem'])}", file=sys.stderr)
            journal.add(entry)
            bar.update()
    run.finish(shard)


def _content_of(name: str) -> str:
    """Return the SHA-256 of a file, so that moving it does not matter; other names unchanged."""
    if not Path(name).is_file():
        return name
    digest = sha256()
    with Path(name).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return f"a file of SHA-256 {digest.hexdigest()[:16]}"
