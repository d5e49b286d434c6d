"""Test reading and writing videos, detection in their frames, and tracking."""

import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from fractions import Fraction
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from detlite.apps.batch_predict.image_files import ImageFiles
from detlite.apps.batch_predict.video import (
    Frame,
    Video,
    build_tracker,
    predict_video,
    video_writer,
)
from detlite.config import ConfigError
from detlite.data import DataError
from detlite.inference.predictor import Predictor
from tests.builders import BrightSquare

av = pytest.importorskip("av", reason="needs PyAV, detlite[video]")

RATE = Fraction(30_000, 1001)  # NTSC
SIZE = 64, 96
COUNT = 20


def draw_frame(number: int) -> Image.Image:
    """Draw a bright 16x16 square, which moves by 2 pixels from frame to frame."""
    image = Image.new("RGB", SIZE[::-1], (0, 0, 90))
    start = 2 * number
    image.paste((250, 250, 250), (start, start, start + 16, start + 16))
    return image


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write a video of a moving square with a variable rate: a frame is missing after the tenth."""
    file = tmp_path / "square.mp4"
    with video_writer(file, RATE) as add:
        for number in range(COUNT):
            add(draw_frame(number), (number + (number > 10)) / RATE)
    return file


def frames_of(file: Path) -> list[Frame]:
    with Video(str(file)) as video:
        return list(video.frames())


def test_written_frames_keep_their_times(file):
    frames = frames_of(file)
    assert [frame.number for frame in frames] == list(range(COUNT))
    gaps = [float(b.time - a.time) for a, b in pairwise(frames)]
    assert gaps == pytest.approx([n / float(RATE) for n in (*[1] * 10, 2, *[1] * 8)], abs=1e-4)
    for frame in frames:
        assert frame.image.shape == (3, *SIZE)
        inside = slice(2 * frame.number + 4, 2 * frame.number + 12)
        assert frame.image[:, inside, inside].float().mean() > 200
        assert frame.image.float().mean() < 60


@pytest.mark.parametrize(("degrees", "corner"), [(90, (1, 0)), (-90, (0, 1)), (180, (1, 1))])
def test_rotation_is_applied(tmp_path, degrees, corner):
    """The top left corner is rotated counterclockwise, as FFmpeg counts."""
    with av.open(str(tmp_path / "turned.mp4"), "w") as container:
        stream = container.add_stream("libx264", 10)
        if not hasattr(stream, "set_display_rotation"):
            pytest.skip("this PyAV cannot write a rotation")
        stream.width, stream.height, stream.pix_fmt = *SIZE[::-1], "yuv420p"
        stream.set_display_rotation(degrees)
        for frame in (av.VideoFrame.from_image(draw_frame(0)), None):
            container.mux(stream.encode(frame))
    (frame,) = frames_of(tmp_path / "turned.mp4")
    height, width = SIZE if degrees == 180 else SIZE[::-1]
    assert frame.image.shape == (3, height, width)
    y, x = (slice(-14, -2) if end else slice(2, 14) for end in corner)
    assert frame.image[:, y, x].float().mean() > 200


def test_names_and_odd_sides(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("10:30 #%d.mp4", "copy.mp4"):  # FFmpeg reads a word before a colon as a protocol
        with video_writer(Path(name), RATE) as add:
            add(Image.new("RGB", (33, 21)), Fraction(0))
        (frame,) = frames_of(Path(name))
        assert tuple(frame.image.shape) == (3, 20, 32)


def test_invalid_videos(tmp_path):
    (tmp_path / "text.mp4").write_text("not a video")
    os.mkfifo(tmp_path / "fifo.mp4")
    for name, reason in (("fifo.mp4", ".*not a regular file"), ("text.mp4", ""), ("none.mp4", "")):
        with pytest.raises(DataError, match=rf"{name}: cannot be read as a video {reason}"):
            Video(str(tmp_path / name))
    with pytest.raises(DataError, match="99: cannot be read as a video"):
        Video("99")


def image_files(out: Path, **changes: Any) -> ImageFiles:
    options = {"output": out, "draw": "jpeg", "format": "results", "label_images": None,
               "labels": None, "track": False, "batch_size": 1, "threads": 2}  # fmt: skip
    predictor = Predictor(BrightSquare(masks=False), *SIZE, score_thresh=0.5, rle=True)
    return ImageFiles(Namespace(**options | changes), predictor)


def predict(file: Path, out: Path, **options: Any) -> list[dict[str, Any]]:
    """Return the entries of all frames; the image id of the first one is 1."""
    return list(predict_video(image_files(out, **options), str(file), 1))


@pytest.mark.parametrize("batch_size", [1, 3])
def test_detections_and_drawn_video(file, tmp_path, batch_size):
    """A link in the output folder is replaced."""
    drawn = tmp_path / "out/drawn/0001_square.mp4"
    drawn.parent.mkdir(parents=True)
    drawn.symlink_to(tmp_path / "other")
    entries = predict(file, tmp_path / "out", batch_size=batch_size)
    for number, entry in enumerate(entries):
        (row,), image = entry["objects"], entry["image"]
        assert row["image_id"] == image["id"] == number + 1 == image["frame"] + 1
        assert row["bbox"] == pytest.approx([2 * number] * 2 + [16, 16], abs=1)
        assert "track_id" not in row
    times = [float(frame.time) for frame in frames_of(file)]
    assert [entry["image"]["time"] for entry in entries] == pytest.approx(times)
    assert not drawn.is_symlink()
    frames = frames_of(drawn)
    assert [float(frame.time) for frame in frames] == pytest.approx(times, abs=1e-4)
    assert frames[0].image.shape == (3, 320, 480)  # small images are enlarged
    assert [*(tmp_path / "out").rglob("*.*")] == [drawn]


@pytest.mark.parametrize("threads", [1, 3])
def test_frames_before_a_damage_are_written(file, tmp_path, monkeypatch, threads):
    def damaged(video: Video, frames: Any = Video.frames) -> Iterator[Frame]:
        yield from islice(frames(video), 5)
        raise DataError("the rest cannot be decoded")

    monkeypatch.setattr(Video, "frames", damaged)
    *entries, last = predict(file, tmp_path, draw="none", threads=threads)
    assert len(entries) == 5
    image = {"id": 6, "file_name": str(file)}
    assert last == {"image": image, "problem": "the rest cannot be decoded"}


def test_closing_completes_the_drawn_video(file, tmp_path):
    frames = predict_video(image_files(tmp_path), str(file), 1)
    assert [next(frames)["image"]["id"] for _ in range(7)] == list(range(1, 8))
    frames.close()
    assert len(frames_of(tmp_path / "drawn/0001_square.mp4")) == 7


def test_tracked_object(file, tmp_path):
    pytest.importorskip("trackers", reason="needs trackers, detlite[video]")
    entries = predict(file, tmp_path, track=True)
    ids = [entry["objects"][0]["track_id"] for entry in entries]
    assert ids == [None, *[1] * (COUNT - 1)]  # a new object needs a second frame


def test_crossing_objects_keep_their_ids():
    pytest.importorskip("trackers", reason="needs trackers, detlite[video]")
    tracker, names = build_tracker(30.0), []
    for number in range(12):
        x = 10.0 * number
        boxes = torch.tensor([[x, 0, x + 40, 40], [110 - x, 60, 150 - x, 100]])
        order = [0, 1] if number % 2 else [1, 0]  # order of the detections
        prediction: Any = {
            "boxes": boxes[order], "labels": torch.ones(2), "scores": torch.full((2,), 0.9),
        }  # fmt: skip
        names.append(dict(zip(order, tracker(prediction), strict=True)))
    assert set(names[1].values()) == {1, 2}
    assert all(ids == names[1] for ids in names[2:])
    empty: Any = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0), "scores": torch.zeros(0)}
    assert tracker(empty) == []


def test_missing_libraries(monkeypatch):
    for name, call in (("av", lambda: Video("a.mp4")), ("trackers", lambda: build_tracker(30))):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ConfigError, match=r"pip install 'detlite\[video\]'"):
            call()
