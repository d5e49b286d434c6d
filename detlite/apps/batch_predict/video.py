"""Read videos and cameras, detect objects in their frames, and write drawn videos.

Videos are read and written by PyAV, which contains FFmpeg: pip install 'detlite[video]'.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from detlite.apps.optional_packages import import_optional
from detlite.apps.prediction_files.writer import Entry
from detlite.config import ConfigError
from detlite.files.errors import DataError
from detlite.files.reading import check_regular
from detlite.inference.inputs import is_any_url, is_camera
from detlite.inference.predictor import Prediction

from .image_files import ImageFiles
from .prediction_pipeline import predict_stream

_EXTRA = "detlite[video]"  # installs PyAV and trackers
_PIXEL_FORMATS = {1: "gray", 3: "rgb24"}  # by the number of channels
_TIMEOUT = 30.0  # seconds without an answer of a server
_DEFAULT_RATE = 25  # frames per second, if the video has no rate
_CODEC_OPTIONS = {"crf": "20"}  # quality of H.264 from 0 (best) to 51; FFmpeg's default is 23
_TICK = Fraction(1, 90_000)  # seconds; a multiple represents all common frame rates exactly


@dataclass(frozen=True)
class Frame:
    """An image uint8 [C, H, W], its number from 0 on, and its time in seconds."""

    number: int
    time: Fraction
    image: Tensor


class Video:
    """A video file, or a camera on Linux by its number; a context manager.

    Attributes:
        rate: average frames per second.

    Raises:
        DataError: it cannot be read.
        ConfigError: PyAV is not installed.
    """

    def __init__(self, name: str, channels: int = 3) -> None:
        self._av = av = import_optional("av", _EXTRA)
        self.name, self._pixels = name, _PIXEL_FORMATS.get(channels)
        if self._pixels is None:
            raise ConfigError(f"{name}: a video has 3 channels or 1, and the model {channels}")
        # `file:`, because a:b.mp4 alone is the protocol a.
        source: tuple[str, ...] = (name,) if is_any_url(name) else (f"file:{name}",)
        try:
            if is_camera(name):
                source = f"/dev/video{name}", "r", "v4l2"
            elif not is_any_url(name):
                check_regular(Path(name))
            self._container: Any = av.open(*source, timeout=_TIMEOUT)
            stream = self._container.streams.video[0]
        except IndexError as error:
            raise DataError(f"{name}: the file contains no video") from error
        except (av.FFmpegError, OSError, ValueError) as error:
            raise DataError(f"{name}: cannot be read as a video ({error})") from error
        stream.thread_type = "AUTO"
        self.rate = Fraction(stream.average_rate or _DEFAULT_RATE)

    def frames(self) -> Iterator[Frame]:
        """Yield the frames in order; a DataError if the rest cannot be decoded."""
        start = None
        try:
            for number, frame in enumerate(self._container.decode(video=0)):
                time = number / self.rate if frame.pts is None else frame.pts * frame.time_base
                start = time if start is None else start
                quarters = round(getattr(frame, "rotation", 0) / 90)  # counterclockwise
                pixels = np.rot90(frame.to_ndarray(format=self._pixels), quarters)
                pixels = pixels.reshape(*pixels.shape[:2], -1).transpose(2, 0, 1)
                yield Frame(number, time - start, torch.from_numpy(pixels.copy()))
        except (self._av.FFmpegError, OSError) as error:
            raise DataError(f"{self.name}: the rest cannot be decoded ({error})") from error

    def __enter__(self) -> Video:
        return self

    def __exit__(self, *_: object) -> None:
        self._container.close()


@contextmanager
def video_writer(file: Path, rate: Fraction) -> Iterator[Callable[..., None]]:
    """Yield a function that adds an RGB image at a time in seconds to an MP4 file, as H.264.

    All images have the same size. H.264 drops the last pixel of an odd side.
    """
    av = import_optional("av", _EXTRA)
    stream: Any = None
    last_tick = -1

    def add(image: Image.Image, time: Fraction) -> None:
        nonlocal stream, last_tick
        width, height = (side // 2 * 2 for side in image.size)
        if stream is None:
            stream = container.add_stream("libx264", rate, options=_CODEC_OPTIONS)
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            stream.codec_context.time_base = _TICK
        frame = av.VideoFrame.from_image(image.crop((0, 0, width, height)))
        # Times must increase, but some cameras' times do not.
        last_tick = max(round(time / _TICK), last_tick + 1)
        frame.pts, frame.time_base = last_tick, _TICK
        container.mux(stream.encode(frame))

    file.unlink(missing_ok=True)  # it may be a link to another file
    with av.open(f"file:{file}", "w") as container:
        try:
            yield add
        finally:
            if stream is not None:
                container.mux(stream.encode(None))  # frames that are still in the encoder


def build_tracker(frame_rate: float) -> Callable[[Prediction], list[int | None]]:
    """Return a function that assigns objects the same id in all frames of a video, with ByteTrack.

    Call it with the predictions of consecutive frames. It returns the id of each object, from 1;
    None if it is not tracked yet. Objects are recognized by their boxes only. A new object needs a
    score of 0.7 and a second frame. From Y. Zhang et al., ByteTrack: Multi-Object Tracking by
    Associating Every Detection Box, ECCV 2022.

    Raises:
        ConfigError: trackers is not installed.
    """
    tracker = import_optional("trackers", _EXTRA).ByteTrackTracker(frame_rate=frame_rate)
    supervision = import_optional("supervision", _EXTRA)

    def track(prediction: Prediction) -> list[int | None]:
        count = len(prediction["scores"])
        detections = supervision.Detections(
            xyxy=prediction["boxes"].numpy(),
            confidence=prediction["scores"].numpy(),
            class_id=prediction["labels"].numpy(),
            data={"index": np.arange(count)},
        )
        tracked = tracker.update(detections)  # in another order
        ids = np.full(count, -1)
        if tracked.tracker_id is not None and count:
            ids[tracked.data["index"]] = tracked.tracker_id
        return [None if track_id < 0 else track_id + 1 for track_id in ids.tolist()]

    return track


def predict_video(files: ImageFiles, name: str, first_id: int) -> Generator[Entry, None, None]:
    """Yield an entry for each frame of a video, with its number and its time in seconds.

    If the rest of the video cannot be decoded, the last entry says why.

    Args:
        files: writes the files of each frame, and has the predictor and the options.
        name: video file, or number of a camera.
        first_id: image id of the first frame.
    """
    predictor, options = files.predictor, files.options
    waiting, number = deque[Frame](), first_id

    def read_frames(video: Video) -> Iterator[Tensor | DataError]:
        try:
            for frame in video.frames():
                waiting.append(frame)
                yield frame.image
        except DataError as error:  # raised below, after the frames before it
            yield error

    try:
        with Video(name, predictor.image_options.channels) as video, ExitStack() as stack:
            track = build_tracker(float(video.rate)) if options.track else None
            add_frame = None
            if drawn := files.drawn_video(name, first_id):
                add_frame = stack.enter_context(video_writer(drawn, video.rate))
            for prediction in predict_stream(
                predictor, read_frames(video), lambda _, image, found: found,
                options.batch_size, options.threads,
            ):  # fmt: skip
                if isinstance(prediction, DataError):
                    raise prediction
                frame = waiting.popleft()
                if track is not None:
                    prediction["track_ids"] = track(prediction)
                if add_frame is not None:
                    add_frame(files.draw(frame.image, prediction), frame.time)
                info = {"id": number, "file_name": name}
                info |= {"frame": frame.number, "time": float(frame.time)}
                number += 1
                yield files.entry(info, frame.image, prediction)
    except DataError as error:
        yield {"image": {"id": number, "file_name": name}, "problem": str(error)}
