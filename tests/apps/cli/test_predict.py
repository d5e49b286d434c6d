"""Tests of `detlite predict`, from the command line to the files it writes."""

import csv
import json
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pycocotools.coco import COCO

from detlite import load_checkpoint
from detlite.apps.batch_predict import predict_run
from detlite.apps.batch_predict.image_files import ImageFiles
from detlite.data.images import IMAGE_READERS
from detlite.engine.run_files import run_lock
from tests.builders import tiny_config, write_noise, write_weights

Run = Callable[..., int]


@pytest.fixture
def run(run_command: Run) -> Run:
    """Return a function that runs the command and returns its exit status."""
    return partial(run_command, "predict")


def checkpoint(path: Path, *opts: Any) -> Path:
    """Write an untrained model that detects something everywhere."""
    cfg = tiny_config(
        "INPUT.MIN_SIZE_TEST", 64, "MODEL.ROI_HEADS.SCORE_THRESH", 0.0, "TEST.OPTIMIZE", False,
        *opts,
    )  # fmt: skip
    return write_weights(cfg, path, keypoints=["head", "tail"] if cfg.MODEL.KEYPOINT_ON else [])


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return checkpoint(tmp_path / "model.pth")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Return a folder with two images and a text file."""
    folder = tmp_path / "photos"
    write_noise(folder / "b.jpg", 50, 90)
    write_noise(folder / "a.png", 70, 90)
    (folder / "notes.txt").write_text("not an image")
    return folder


@pytest.fixture
def arguments(weights: Path, photos: Path, tmp_path: Path) -> tuple[Any, ...]:
    """Return the arguments to detect in `photos`."""
    return "--weights", weights, "--input", photos, "--output", tmp_path / "out"


@pytest.fixture
def predict(run: Run, arguments: tuple[Any, ...]) -> Run:
    """Return `predict(*more, out=...)`, which detects in `photos`."""
    return lambda *more, out=arguments[-1]: run(*arguments[:-1], out, *more)


def results(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "results.json").read_text())


def test_files(run, weights, photos, tmp_path):
    """The same image twice is drawn twice, and pycocotools loads the json files."""
    out = tmp_path / "new" / "out"
    inputs = ("--input", photos, photos / "a.png")
    assert run("--weights", weights, *inputs, "--output", out, "--threshold", "0") == 0
    drawn = [out / "drawn" / name for name in ("0001_a.jpg", "0002_b.jpg", "0003_a.jpg")]
    assert sorted((out / "drawn").iterdir()) == drawn
    assert drawn[0].read_bytes() == drawn[2].read_bytes()
    coco = COCO(out / "images.json")
    assert [coco.imgs[i]["file_name"] for i in (1, 2)] == [*map(str, sorted(photos.glob("*.*g")))]
    assert (coco.imgs[2]["height"], coco.imgs[2]["width"]) == (50, 90)
    found = coco.loadRes(str(out / "results.json"))
    assert {found.anns[k]["image_id"] for k in found.anns} == {1, 2, 3}
    assert {found.anns[k]["category_id"] for k in found.anns} <= {10, 20, 30}
    assert found.annToMask(found.anns[1]).shape == (70, 90)


READER = """
import numpy as np
from PIL import Image
from detlite.data.images import IMAGE_READERS


@IMAGE_READERS.register(".scan")
def read_scan(file):
    return np.asarray(Image.open(file))
"""


def test_formats_of_imported_readers(run, weights, photos, tmp_path, monkeypatch):
    monkeypatch.setattr(IMAGE_READERS, "_builders", {**IMAGE_READERS._builders})
    (tmp_path / "reader.py").write_text(READER)
    for image in ("a.png", "b.jpg"):
        (photos / image).rename((photos / image).with_suffix(".scan"))
    for source in (photos, f"{photos}/*.scan", photos.parent):
        arguments = ("--weights", weights, "--input", source, "--output", tmp_path / "out")
        assert run(*arguments, "--overwrite", "IMPORTS", f"[{tmp_path}/reader.py]") == 0
        assert len(json.loads((tmp_path / "out/images.json").read_text())["images"]) == 2


def test_threshold_tiles_and_overrides(predict, tmp_path):
    def found(*more):
        assert predict("--overwrite", "--draw", "none", *more) == 0
        return results(tmp_path / "out")

    plain = found("--threshold", "0")
    assert len(plain) > 2
    assert found("--threshold", "1") == []
    assert len(found("--threshold", "0", "MODEL.ROI_HEADS.DETECTIONS_PER_IMG=1")) == 2
    tiles = found("--threshold", "0", "--tile", "40")
    assert tiles == found("--threshold", "0", "TEST.TILE", "40") != plain


KEYPOINTS = [
    "MODEL.KEYPOINT_ON", True, "MODEL.ROI_KEYPOINT_HEAD.SHARE_BOX_FEATURE_EXTRACTOR", False,
    "MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES", 2, "MODEL.ROI_KEYPOINT_HEAD.RESOLUTION", 56,
    "MODEL.ROI_KEYPOINT_HEAD.CONV_LAYERS", (8,),
]  # fmt: skip


@pytest.mark.parametrize(("convention", "center"), [("detlite", 0.5), ("torchvision", 0.0)])
def test_keypoints_are_indices_of_pixels(run, photos, tmp_path, convention, center):
    weights = checkpoint(tmp_path / "points.pth", *KEYPOINTS, "MODEL.CONVENTION", convention)
    out = tmp_path / "out"
    arguments = ("--weights", weights, "--input", photos / "a.png", "--output", out)
    assert run(*arguments, "--threshold", "0") == 0
    found = load_checkpoint(weights, score_thresh=0.0)(photos / "a.png")["keypoints"]
    actual = torch.tensor([result["keypoints"] for result in results(out)])
    assert len(actual) == len(found) > 0
    torch.testing.assert_close(actual, (found - torch.tensor([center, center, 0])).flatten(1))


def test_unreadable_images_are_reported_and_skipped(run, weights, photos, tmp_path, capsys):
    """Control characters in names do not reach the terminal."""
    damaged = (photos / "a.png").rename(photos / "a\x1b[31m\n.png")
    damaged.write_bytes(damaged.read_bytes()[:500])
    inputs = (photos, tmp_path / "missing.png")
    assert run("--weights", weights, "--input", *inputs, "--output", tmp_path) == 1
    output = capsys.readouterr()
    assert f"skipped: {photos}/a\\x1b[31m\\n.png: " in output.err
    assert "\x1b[31m" not in output.err
    assert f"skipped: {tmp_path / 'missing.png'}: the image file does not" in output.err
    assert "1 images done, 2 unreadable" in output.out
    images = json.loads((tmp_path / "images.json").read_text())["images"]
    assert [(image["id"], Path(image["file_name"]).name) for image in images] == [(2, "b.jpg")]


def test_unusable_arguments(weights, photos, tmp_path, error_of, monkeypatch):
    empty, taken = tmp_path / "empty", tmp_path / "taken"
    empty.mkdir()
    taken.touch()
    fast = checkpoint(tmp_path / "fast.pth", "MODEL.LOAD_PROPOSALS", True)
    for file, folder, out, opts, message in (
        (tmp_path / "no.pth", photos, tmp_path, "", "no.pth: cannot be read"),
        (weights, photos, tmp_path, "--batch-size 0", "--batch-size: 0: must be at least 1"),
        (weights, photos, tmp_path, "--threshold 1.1", "threshold 1.1: must be a number in 0..1"),
        (weights, photos, tmp_path, "--threshold no=0.1", "category 'no' (0.1): it"),
        (weights, empty, tmp_path, "", "empty: the folder contains no images"),
        (weights, photos, tmp_path, "INPUT.MIN_SIZE 3", "unknown config key INPUT.MIN_SIZE"),
        (weights, photos, taken, "", f"{taken}: cannot be written to (File exists)"),
        (fast, photos, tmp_path / "new", "", f"{fast}: a Fast R-CNN needs proposals"),
        (weights, "a.jpg", tmp_path, "--track", "--track follows objects through a video, but"),
    ):
        paths = ("--weights", file, "--input", folder, "--output", out)
        assert message in error_of("predict", *paths, *opts.split())
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "without torchrun, with --workers" in error_of("predict", *paths)
    assert not (tmp_path / "new").exists()


def test_interrupted_run_continues(run, weights, photos, tmp_path, monkeypatch, capsys):
    """After Ctrl-C, finished images are not read again, and drawn images are not inputs."""
    arguments: tuple[Any, ...] = ("--weights", weights, "--threshold", "0", "--input")
    assert run(*arguments, photos, "--output", tmp_path / "whole") == 0
    out = photos / "b"  # matched by the glob below
    arguments = (*arguments, photos / "**" / "*.[jp]*g", "--output", out)
    real, read = ImageFiles.predict, []

    def record(files: Any, images: Any, ids: Any) -> Iterator[Any]:
        read.extend(images)
        yield next(real(files, images, ids))
        if len(images) > 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(ImageFiles, "predict", record)
    assert run(*arguments) == 130
    message = "interrupted: the same command continues with the remaining images\n"
    assert capsys.readouterr().err == message
    for _ in range(2):
        assert run(*arguments) == 0
    assert read == [str(photos / name) for name in ("a.png", "b.jpg", "b.jpg")]
    for name in ("results.json", "images.json"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert sorted(file.name for file in (out / "drawn").iterdir()) == ["0001_a.jpg", "0002_b.jpg"]


def test_another_command_in_the_same_folder_is_refused(run, weights, photos, tmp_path, error_of):
    arguments = ("--input", photos, "--output", tmp_path / "out")
    assert run("--weights", weights, *arguments) == 0
    moved = weights.rename(tmp_path / "moved.pth")
    assert run("--weights", moved, *arguments) == 0  # the same weights
    before = results(tmp_path / "out")
    other = checkpoint(tmp_path / "other.pth", "MODEL.RPN.NMS_THRESH", 0.6)
    for more, name in (
        ((other,), "weights"),
        ((moved, "--threshold", "0.1"), "threshold"),
        ((moved, "--draw", "none"), "draw"),
        ((moved, "MODEL.RPN.NMS_THRESH=0.6"), "overrides"),
    ):
        error = error_of("predict", "--weights", *more, *arguments)
        assert error.startswith(f"{tmp_path / 'out'} contains a run with other {name}: ")
    assert results(tmp_path / "out") == before
    with run_lock(tmp_path / "out"):
        error = error_of("predict", "--weights", other, *arguments, "--overwrite")
    assert error.startswith(f"{tmp_path / 'out'}: another run is writing to this folder")
    assert run("--weights", other, *arguments, "--overwrite") == 0


@pytest.mark.slow  # starts Ray
def test_workers_write_the_same_results(predict, photos, tmp_path):
    pytest.importorskip("ray", reason="needs ray, detlite[ray]")
    (photos / "c.png").write_bytes(b"not an image")
    for out, more in ((tmp_path / "one", ()), (tmp_path / "two", ("--workers", 1))):
        assert predict("--threshold", "0", *more, out=out) == 1
        drawn = sorted(file.name for file in (out / "drawn").iterdir())
        assert drawn == ["0001_a.jpg", "0002_b.jpg"]
    rows, expected = results(tmp_path / "two"), results(tmp_path / "one")
    assert [row["image_id"] for row in rows] == [row["image_id"] for row in expected]
    boxes = [[row["bbox"] for row in one] for one in (rows, expected)]
    np.testing.assert_allclose(*boxes, atol=1e-3)


def test_labels_have_copies_of_the_images(predict, photos, tmp_path):
    """A page, and an image that tools turn, but the model does not, become PNG files."""
    pages = [Image.new("RGB", (30, 20), (value,) * 3) for value in (10, 20)]
    pages[0].save(photos / "c.tif", save_all=True, append_images=pages[1:])
    exif = Image.Exif()
    exif[274] = 6
    pages[0].save(photos / "d.jpg", exif=exif)
    out = tmp_path / "out"
    convention = ("MODEL.CONVENTION_OVERRIDE", "['exif_orientation=False']")
    for _ in range(2):  # complete runs have nothing to do
        assert predict("--format", "coco", "--draw", "none", *convention) == 0
    assert not (out / "drawn").exists()
    names = ["0001_a.png", "0002_b.jpg", "0003_c_page1.png", "0004_c_page2.png", "0005_d.png"]
    images = sorted((out / "images").iterdir())
    assert [file.name for file in images] == names
    assert images[1].read_bytes() == (photos / "b.jpg").read_bytes()
    with Image.open(images[-1]) as image:
        assert (image.size, image.getexif()) == ((30, 20), {})
    content = json.loads((out / "annotations.json").read_text())
    assert [row["file_name"] for row in content["images"]] == names
    assert len(content["categories"]) == 3
    assert predict("--format", "csv", "--overwrite") == 0
    assert not list((out / "images").iterdir())


def test_videos_among_images(run, weights, photos, tmp_path, monkeypatch, capsys):
    """Ids continue; a video that cannot be opened is skipped; Ctrl-C ends only the last video."""
    for package in ("av", "trackers"):
        pytest.importorskip(package, reason="needs PyAV and trackers, detlite[video]")
    from detlite.apps.batch_predict.video import video_writer

    for name in ("one.mp4", "two.mp4"):
        with video_writer(tmp_path / name, Fraction(10)) as add:
            for number in range(2):
                add(Image.new("RGB", (60, 40)), Fraction(number, 10))
    (tmp_path / "text.mp4").write_text("no video")
    names = (tmp_path / "one.mp4", photos, tmp_path / "text.mp4", tmp_path / "two.mp4")
    arguments = ("--weights", weights, "--input", *names, "--output", tmp_path / "out")
    last = ("--weights", weights, "--input", tmp_path / "two.mp4", "--output", tmp_path / "camera")
    real = predict_run.predict_video

    def stopped(files: Any, name: str, first_id: int) -> Iterator[Any]:
        yield next(real(files, name, first_id))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(predict_run, "predict_video", stopped)
        assert run(*arguments) == 130
        assert run(*last, "--track") == 0
    assert "1 images and video frames done" in capsys.readouterr().out
    assert run(*arguments) == 1
    output = capsys.readouterr()
    assert "text.mp4: cannot be read as a video" in output.err
    assert "6 images and video frames done, 1 unreadable" in output.out
    images = json.loads((tmp_path / "out/images.json").read_text())["images"]
    assert [
        (image["id"], Path(image["file_name"]).name, image.get("frame")) for image in images
    ] == [
        (1, "one.mp4", 0), (2, "one.mp4", 1), (3, "a.png", None), (4, "b.jpg", None),
        (6, "two.mp4", 0), (7, "two.mp4", 1),
    ]  # fmt: skip
    assert (tmp_path / "out/drawn/0006_two.mp4").exists()
    arguments = ("--weights", weights, "--input", "987", "--output", tmp_path / "live")
    assert run(*arguments) == 1  # there is no such camera
    assert run(*arguments) == 2
    assert "contains the results of an earlier recording" in capsys.readouterr().err


def test_a_drawing_that_cannot_be_written(predict, arguments, tmp_path, error_of):
    out = tmp_path / "out"
    (out / "drawn" / "0002_b.jpg").mkdir(parents=True)
    error = error_of("predict", *arguments, "--threshold", "0")
    assert "[Errno 21]" in error
    assert str(out / "drawn/0002_b.jpg") in error
    assert not (out / "results.json").exists()
    (out / "drawn" / "0002_b.jpg").rmdir()
    assert predict("--threshold", "0") == 0
    assert {row["image_id"] for row in results(out)} == {1, 2}


def test_measures_and_label_images(run, photos, tmp_path):
    weights, out = checkpoint(tmp_path / "masks.pth"), tmp_path / "found"
    (tmp_path / "list.txt").write_text(f"{photos}/a.png\n{photos}/b.jpg\n")
    options = ("--weights", weights, "--input", tmp_path / "list.txt", "--output", out)
    more = ("--format", "measures", "--label-images", "tiff", "--draw", "png", "--threshold", 0)
    assert run(*options, *more) == 0
    tables = []
    for name in ("results.csv", "summary.csv"):
        with (out / name).open(newline="") as stream:
            tables.append(list(csv.DictReader(stream)))
    rows, images = tables
    assert [Path(row["file_name"]).name for row in images] == ["a.png", "b.jpg"]
    assert sum(int(row["objects"]) for row in images) == len(rows) > 0
    with Image.open(out / "label_images/0001_a.tif") as image:
        values = np.asarray(image)
    assert values.shape == (70, 90)
    own = [row for row in rows if row["image_id"] == "1" and int(row["area"])]
    best = max(own, key=lambda row: float(row["score"]))
    assert (values == int(best["label"])).sum() == int(best["area"])
    with Image.open(out / "drawn/0002_b.png") as image:
        assert image.format == "PNG"
