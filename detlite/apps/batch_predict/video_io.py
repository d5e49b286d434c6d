"""Videos and cameras: frames in, and drawn frames out at the same times.

By PyAV, which holds FFmpeg: pip install 'detlite[video]'.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from detlite.config import ConfigError
from detlite.data.errors import DataError

_SUFFIXES = (".avi", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".webm", ".wmv")
_RATE = 25  # of a video that states none
_QUALITY = {"crf": "20"}  # of H.264, 0 to 51; 23 is what FFmpeg takes by itself


def is_video(name: str) -> bool:
    """Whether a name is that of a video file, or the number of a camera."""
    return is_camera(name) or (name.lower().endswith(_SUFFIXES) and not Path(name).is_dir())


def is_camera(name: str) -> bool:
    """Whether a name is the number of a camera, and not that of a file or folder."""
    return name.isdecimal() and not Path(name).exists()


@dataclass(frozen=True)
class Frame:
    """A picture uint8 [3, H, W], its number from 0 on, and when it is shown, in seconds."""

    number: int
    time: Fraction
    picture: Tensor


class Video:
    """A video file, or a camera of Linux by its number; a context manager.

    Attributes:
        rate: frames a second, on average.
        count: frames, as the file states; 0: not known.

    Raises:
        DataError: it cannot be read.
        ConfigError: PyAV is not installed.
    """

    def __init__(self, name: str) -> None:
        av = _pyav()
        self.name = name
        try:
            if is_camera(name):
                self._container: Any = av.open(f"/dev/video{name}", format="v4l2")
            else:
                self._container = av.open(name)
            stream = self._container.streams.video[0]
        except IndexError as error:
            raise DataError(f"{name}: there is no video in this file") from error
        except (av.FFmpegError, OSError, ValueError) as error:
            raise DataError(f"{name}: cannot be read as a video ({error})") from error
        stream.thread_type = "AUTO"
        self.rate = Fraction(stream.average_rate or _RATE)
        self.count: int = stream.frames

    def frames(self) -> Iterator[Frame]:
        """The frames in their order; a DataError where the rest cannot be decoded."""
        av, first = _pyav(), None
        try:
            for number, frame in enumerate(self._container.decode(video=0)):
                time = number / self.rate if frame.pts is None else frame.pts * frame.time_base
                first = time if first is None else first
                pixels = frame.to_ndarray(format="rgb24")
                turns = round(getattr(frame, "rotation", 0) / 90)  # counter-clockwise
                pixels = np.rot90(pixels, turns).transpose(2, 0, 1)
                yield Frame(number, time - first, torch.from_numpy(pixels.copy()))
        except (av.FFmpegError, OSError) as error:
            raise DataError(f"{self.name}: the rest cannot be decoded ({error})") from error

    def __enter__(self) -> Video:
        return self

    def __exit__(self, *_: object) -> None:
        self._container.close()


class VideoWriter:
    """Writes pictures of one size as H.264 in an MP4, each to be shown at its time."""

    def __init__(self, container: Any, rate: Fraction) -> None:
        self._container, self._rate = container, rate
        self._stream: Any = None
        self._last = -1

    def add(self, picture: Image.Image, time: Fraction) -> None:
        """Adds an RGB picture; of an odd side, which H.264 has not, the last pixel is left out."""
        width, height = (side // 2 * 2 for side in picture.size)
        if self._stream is None:
            self._stream = self._container.add_stream("libx264", self._rate, options=_QUALITY)
            self._stream.width, self._stream.height = width, height
            self._stream.pix_fmt = "yuv420p"
            self._stream.codec_context.time_base = _TICK
        frame = _pyav().VideoFrame.from_image(picture.crop((0, 0, width, height)))
        # Times must rise; those of some cameras do not.
        self._last = max(round(time / _TICK), self._last + 1)
        frame.pts, frame.time_base = self._last, _TICK
        self._container.mux(self._stream.encode(frame))

    def finish(self) -> None:
        """Writes what the encoder still holds."""
        if self._stream is not None:
            self._container.mux(self._stream.encode(None))


_TICK = Fraction(1, 90_000)  # seconds; holds the rates of film, television and cameras exactly


@contextmanager
def open_writer(file: Path, rate: Fraction) -> Iterator[VideoWriter]:
    """Opens a video file, which is whole after the `with` block, however that ends."""
    with _pyav().open(str(file), "w") as container:
        writer = VideoWriter(container, rate)
        try:
            yield writer
        finally:
            writer.finish()


def _pyav() -> ModuleType:
    try:
        import av
    except ImportError as error:
        raise ConfigError(f"videos need PyAV ({error}): pip install 'detlite[video]'") from error
    return av
