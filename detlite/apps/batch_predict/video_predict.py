"""Detection in the frames of a video: what `detlite predict` does with one."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

from torch import Tensor

from detlite.apps.drawing import draw_detections
from detlite.config import ConfigError
from detlite.data.errors import DataError
from detlite.inference.predictor import Prediction, Predictor

from .batch_predict import done_picture
from .journal import open_journal, read_journal
from .prediction_pipeline import predict_stream
from .result_files import SUFFIXES, category_names, write_detections, write_images
from .tracking import Tracker
from .video_io import Frame, Video, is_camera, open_writer
from .work_shards import MANIFEST, RESULTS, Totals

_JOURNAL = "frames.journal"


def check_folder(folder: Path, name: str, overwrite: bool, drawn: bool = True) -> None:
    """Checks, before anything is computed, that the results of a video may be written.

    Args:
        name: of the video.
        drawn: it is to be written drawn, too.

    Raises:
        ConfigError: there are others, and `overwrite` does not say that they may go; or the drawn
            video would take the place of the video itself.
    """
    video = drawn_video(folder, name)
    if drawn and video.exists() and Path(name).exists() and video.samefile(name):
        raise ConfigError(f"{video} is the video itself, not to be drawn over: name another folder")
    for there in (MANIFEST, *RESULTS, *([video.name] if drawn else [])):
        if (folder / there).exists() and not overwrite:
            raise ConfigError(
                f"{folder / there} is there already: name another folder, or --overwrite"
            )


def drawn_video(folder: Path, name: str) -> Path:
    """Where the video or camera of a name is written with what is in it drawn."""
    return folder / f"{'camera' if is_camera(name) else ''}{Path(name).stem}.mp4"


def predict_video(
    predictor: Predictor,
    video: Video,
    folder: Path,
    form: str = "coco",
    drawn: bool = True,
    batch_size: int = 1,
    threads: int = 2,
    tracker: Tracker | None = None,
    progress: Callable[[], object] = lambda: None,
) -> tuple[Totals, str]:
    """Writes what is in the frames of a video, and the video with it drawn.

    In `folder`, where `check_folder` found room: `<name>.mp4`, `results.*` and `images.json`, where
    an image is a frame with its number and its time in seconds. Ctrl-C ends it, as it must a
    camera's: what is done by then is written.

    Args:
        predictor: as `load_predictor` gives it.
        form: of `formats.SUFFIXES`.
        tracker: gives objects ids, which are written as `track_id` and drawn.
        progress: called after each frame.

    Returns:
        What was done, and what is wrong with the rest of the video, if anything.
    """
    journal, waiting = folder / _JOURNAL, deque[Frame]()
    journal.unlink(missing_ok=True)
    frames, objects, problem = 0, 0, ""

    def in_order() -> Iterator[Frame]:
        nonlocal problem
        try:
            for frame in video.frames():
                waiting.append(frame)
                yield frame
        except DataError as error:  # the frames before it are still on their way
            problem = str(error)

    def both(_: int, picture: Tensor, found: Prediction) -> tuple[Tensor, Prediction]:
        return picture, found

    stream = predict_stream(
        predictor, in_order(), both, batch_size, threads, lambda one: predictor.load(one.picture)
    )
    with (
        open_journal(journal) as lines,
        open_writer(drawn_video(folder, video.name), video.rate)
        if drawn
        else nullcontext() as writer,
    ):
        try:
            for one in stream:
                assert not isinstance(one, DataError)  # frames are read already
                (picture, found), frame = one, waiting.popleft()
                entry = done_picture(predictor, frame.number + 1, video.name, picture, found)
                entry["image"] |= {"frame": frame.number, "time": float(frame.time)}
                if tracker is not None:
                    found["track_ids"] = tracker(found)
                    for row, track in zip(entry["objects"], found["track_ids"], strict=True):
                        row["track_id"] = track
                if writer is not None:
                    writer.add(
                        draw_detections(picture, found, predictor.categories, min_score=0),
                        frame.time,
                    )
                lines.add(json.dumps(entry))
                frames, objects = frames + 1, objects + len(entry["objects"])
                progress()
        except KeyboardInterrupt:
            pass
    names = category_names(predictor.categories)
    write_detections(form, folder / f"results{SUFFIXES[form]}", read_journal(journal), names)
    images = (entry["image"] for entry in read_journal(journal))
    write_images(folder / "images.json", images, predictor.categories)
    journal.unlink()
    return Totals(frames, int(bool(problem)), objects), problem
