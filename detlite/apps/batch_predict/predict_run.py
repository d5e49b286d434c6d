"""A run of `detlite predict` over images and videos."""

import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from hashlib import sha256
from itertools import groupby
from pathlib import Path

from detlite.apps.prediction_files.writer import FORMATS, Entry, ModelInfo
from detlite.config import ConfigError
from detlite.data.annotations.store import content_hash
from detlite.data.images.pixels import ImageOptions
from detlite.data.images.reading import count_pages
from detlite.engine.run_files import run_lock
from detlite.errors import one_line
from detlite.files.errors import DataError
from detlite.files.progress import progress_bar
from detlite.inference.inputs import expand_input, is_any_url, is_live, is_video_name
from detlite.inference.predictor import Predictor
from detlite.threads import limit_threads

from .image_files import FOLDERS, ImageFiles
from .predict_images import load_predictor
from .ray import Predict, ray_entries
from .resumable_run import ResumableRun, Totals, remove_results
from .video import predict_video

_PAGED_SUFFIXES = (".tif", ".tiff", ".gif", ".webp", ".png", ".apng", ".avif")


def predict(options: Namespace) -> Totals:
    """Start a run with the options of `detlite predict`, or continue an interrupted one.

    Raises:
        ConfigError: an option is invalid.
        CheckpointError, DataError: the weights or inputs cannot be read.
    """
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise ConfigError(
            "detlite predict is one process: start it without torchrun, with --workers for several "
            "devices or machines"
        )
    options.overrides += [] if options.tile is None else ["TEST.TILE", str(options.tile)]
    limit_threads()
    # With workers, this process only writes what they predict.
    predictor = _load(options, ["MODEL.DEVICE", "cpu"] if options.workers else [])
    # Listed after the config, whose IMPORTS may register readers of other image formats.
    exclude = [options.output / name for name in FOLDERS]
    names = [*list_inputs(options.inputs, predictor.image_options, exclude)]
    with_videos = any(map(is_video_name, names))
    if options.track and not with_videos:
        raise ConfigError("--track follows objects through a video, but --input names no video")
    digest = sha256("\0".join(names).encode(errors="surrogatepass")).hexdigest()[:16]
    command = {
        "weights": _content_of(options.weights),
        "config": options.config and _content_of(options.config),
        "overrides": options.overrides,
        "images": f"{len(names)} (SHA-256 of their names {digest})",
        **{name.replace("_", " "): getattr(options, name)
           for name in ("format", "threshold", "draw", "labels", "label_images", "track")},
    }  # fmt: skip
    center = predictor.model.convention.keypoint_center
    model = ModelInfo(predictor.categories, center, predictor.image_options.channels)
    writer = FORMATS.get(options.format)(options.output, model)
    with run_lock(options.output):
        if options.overwrite:
            remove_results(options.output)
        with closing(ResumableRun(writer, command, not with_videos)) as run:
            if run.is_done and any(map(is_live, names)):
                raise ConfigError(
                    f"{options.output} contains the results of an earlier recording: choose "
                    "another folder, or add --overwrite"
                )
            if not run.is_done:
                _predict_all(run, names, predictor, options)
                run.finish()
            return run.totals


def _predict_all(
    run: ResumableRun, names: Sequence[str], predictor: Predictor, options: Namespace
) -> None:
    """Predict the images and videos that are left."""
    files = ImageFiles(options, predictor)
    total = None if any(map(is_video_name, names)) else len(names)
    with progress_bar(total=total, initial=run.finished, unit=" images") as bar:

        def add(entries: Iterator[Entry]) -> None:
            for entry in entries:
                if "problem" in entry:
                    if sys.stderr and sys.stderr.isatty():
                        bar.clear()
                    print(f"skipped: {one_line(entry['problem'])}", file=sys.stderr)
                run.add(entry)
                bar.update()

        for in_videos, group in groupby(names[run.finished :], is_video_name):
            if not in_videos:
                images = list(group)
                ids = range(run.finished + 1, run.finished + 1 + len(images))
                if options.workers:
                    start = partial(_start_worker, options)
                    add(ray_entries(start, images, ids, options.workers))
                else:
                    add(files.predict(images, ids))
                continue
            for name in group:
                frames = predict_video(files, name, run.finished + 1)
                try:
                    add(frames)
                except KeyboardInterrupt:  # how a camera ends
                    if name is not names[-1]:
                        raise
                finally:
                    frames.close()  # completes the drawn video


def _load(options: Namespace, overrides: Sequence[str] = ()) -> Predictor:
    opts = [*options.overrides, *overrides]
    return load_predictor(
        options.weights, options.threshold, opts, options.config, trust=options.trust
    )


def _start_worker(options: Namespace) -> Predict:
    """Return a function that predicts images, in a process of Ray Data."""
    return ImageFiles(options, _load(options)).predict


def _content_of(name: str) -> str:
    """Return a hash of a file, so that moving it does not matter; other names unchanged."""
    file = Path(name)
    return f"a file of hash {content_hash(file)[:16]}" if file.is_file() else name


def list_inputs(
    inputs: Sequence[str], options: ImageOptions, exclude: Sequence[Path] = ()
) -> Iterator[str]:
    """Yield the names of images and videos, in the order of `inputs`, see `expand_input`.

    A local file of several pages has a name for each: `scan.tif#page=1`, ... Only files of formats
    that can have pages are opened. A damaged file is reported when it is read.
    """
    for source in inputs:
        found = expand_input(source, exclude)
        for name in [found] if isinstance(found, str) else found:
            pages = 1
            if name.lower().endswith(_PAGED_SUFFIXES) and not is_any_url(name):
                with suppress(DataError):
                    pages = count_pages(name, options)
            yield from [name] if pages == 1 else (f"{name}#page={k + 1}" for k in range(pages))
