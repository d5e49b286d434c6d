"""Test what is recognized as images and videos, and how they are listed and read."""

import base64
import io
import zipfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from detlite.apps.batch_predict import predict_run
from detlite.apps.prediction_files.writer import file_stem
from detlite.data import DataError
from detlite.data.images.pixels import DEFAULT_OPTIONS
from detlite.inference import prediction
from detlite.inference.inputs import is_video_name, split_page


def list_inputs(inputs: Sequence[str], exclude: Sequence[Path] = ()) -> list[str]:
    return [*predict_run.list_inputs(inputs, DEFAULT_OPTIONS, exclude)]


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a folder of empty files in the current folder."""
    monkeypatch.chdir(tmp_path)
    names = ("b.jpg", "a.PNG", "c.txt", "deep/d.jpg", "deep/er/e.jpeg", "deep/notes", "[1].jpg",
             "walks/walk.MP4", "walks/.DS_Store", "folders/b/2.jpg", "folders/a[1]/1.png",
             "folders/a[1]/notes.md")  # fmt: skip
    for name in names:
        file = tmp_path / "photos" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return tmp_path / "photos"


@pytest.mark.parametrize(
    ("inputs", "names"),
    [
        (["photos/walks"], ["walks/walk.MP4"]),  # videos are listed with images
        (["photos/folders"], ["folders/a[1]/1.png", "folders/b/2.jpg"]),
        (["photos"], ["[1].jpg", "a.PNG", "b.jpg"]),
        (["photos/"], ["[1].jpg", "a.PNG", "b.jpg"]),
        (["photos/**/[b-e].jp*g"], ["b.jpg", "deep/d.jpg", "deep/er/e.jpeg"]),
        (["photos/d*/**"], ["deep/d.jpg", "deep/er/e.jpeg"]),
        (["**/er/*", "./**/d.*"], ["deep/er/e.jpeg", "deep/d.jpg"]),
        (["photos/deep/*"], ["deep/d.jpg"]),
        (["photos/[1].jpg"], ["[1].jpg"]),  # a file, not a glob
        (["photos/[ab].*"], ["a.PNG", "b.jpg"]),
        (["photos/b.jpg", "photos/none.jpg", "photos"],
         ["b.jpg", "none.jpg", "[1].jpg", "a.PNG", "b.jpg"]),
    ],
)  # fmt: skip
def test_files_folders_and_globs(photos, inputs, names):
    assert list_inputs(inputs) == [f"photos/{name}" for name in names]


def test_kinds_of_names(photos):
    assert list_inputs([(photos / "b.jpg").as_uri()]) == [str(photos / "b.jpg")]
    names = ["a.mp4", "7", "rtsp://host/live", "https://host/a.mp4?key=1", "a.jpg", "s3://b/a.jpg"]
    assert list(map(is_video_name, names)) == [True] * 4 + [False] * 2


def test_links_to_folders_are_followed_once(photos):
    """Three links of a folder to itself would have 3 ** 40 paths."""
    for name in "xyz":
        (photos / "deep" / name).symlink_to(photos / "deep")
    (photos / "deep" / ".hidden").mkdir()
    (photos / "deep" / ".hidden" / "f.jpg").touch()
    (photos.parent / "linked").mkdir()
    (photos.parent / "linked" / "sub").symlink_to(photos / "deep")
    for source in ("linked", "linked/**/*.jp*g", "l*/**/s*/**/*.jp*g"):
        found = list_inputs([source])
        assert [path.rpartition("sub/")[2] for path in found] == ["d.jpg", "er/e.jpeg"]


def test_excluded_folder(photos):
    drawn = [photos / "deep", photos / "folders"]
    assert list_inputs(["photos/**/*.jp*g"], drawn) == ["photos/[1].jpg", "photos/b.jpg"]
    assert list_inputs(["photos/deep/d.jpg"], drawn) == ["photos/deep/d.jpg"]  # named explicitly


LINES = "photos/b.jpg\r\n\nhttps://host/x.jpg\nphotos/ä b.png\n"
PATHS = ["photos/b.jpg", "https://host/x.jpg", "photos/ä b.png"]
TABLE = "label,path\ncat,b.jpg\ndog,c.jpg\ncat,b.jpg\n"


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        *(("list.txt", f"\ufeff{LINES}".encode(encoding), PATHS)
          for encoding in ("utf-8", "utf-16-le", "utf-16-be")),
        ("-", LINES.encode(), PATHS),
        ("list.csv", TABLE.encode(), ["b.jpg", "c.jpg"]),
        ("list.csv", b"b.jpg\nc.jpg\n", ["b.jpg", "c.jpg"]),
        ("list.csv", b'"a, b.jpg"\n', ["a, b.jpg"]),
        ("empty.txt", b"", "empty.txt: the list contains no paths"),
        ("none.txt", None, r"none.txt: the list of images cannot be read \(.*No such file"),
        ("binary.txt", b"\x89\xfe\x00", r"binary.txt: the list of images cannot be read .*utf-8"),
        ("photos/walks/*.gif", None, r"photos/walks/\*\.gif: no image matches this pattern"),
        ("photos/none", None, "photos/none: the folder contains no images"),
        ("", None, "an input is empty"),
        (" ", None, "an input is empty"),
        ("A" * 5000, None, "too long for a path. Decode base64"),
        *((url, None, [url]) for url in
          ("HTTP://host/y", "s3://bucket/a.jpg", "rtsp://host/live", "data:image/png;base64,aGk=")),
    ],
)  # fmt: skip
def test_lists_urls_and_errors(photos, monkeypatch, name, content, expected):
    (photos / "none").mkdir()
    if name == "-":
        monkeypatch.setattr("sys.stdin", io.StringIO(content.decode()))
    elif content is not None:
        Path(name).write_bytes(content)
    if isinstance(expected, list):
        assert list_inputs([name]) == expected
        return
    with pytest.raises(DataError, match=expected) as caught:
        list_inputs([name])
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("photos/a b.c.jpg", "a b.c"),
        ("https://host/some/pic%2Fture.jpg?size=3#x", "pic_ture"),
        ("zip://deep/a.jpg::photos.zip", "a"),
        ("data:image/png;base64,aGk=", "data"),
    ],
)
def test_stems(name, stem):
    assert file_stem({"image": {"id": 7, "file_name": name}}) == f"0007_{stem}"


def test_zip_files(photos, tmp_path):
    with zipfile.ZipFile("photos.zip", "w") as archive:
        Image.new("RGB", (4, 3), (1, 2, 3)).save("a.png")
        for name in ("deep/a.png", "notes.txt", "__MACOSX/deep/._a.png"):
            archive.write("a.png", name)
    (name,) = list_inputs(["photos.zip"])
    assert name == "zip://deep/a.png::photos.zip"
    image = prediction.load_image(name, DEFAULT_OPTIONS)
    assert image[:, 0, 0].tolist() == [1, 2, 3]
    with zipfile.ZipFile("photos.zip", "a") as archive:
        archive.write("a.png", "walk.mp4")
    assert list_inputs(["photos.zip"])[1:] == ["zip://walk.mp4::photos.zip"]  # not lost


def test_data_urls(tmp_path):
    Image.new("RGB", (4, 3), (1, 2, 3)).save(tmp_path / "a.png")
    text = base64.b64encode((tmp_path / "a.png").read_bytes()).decode()
    image = prediction.load_image(f"data:image/png;base64,{text}", DEFAULT_OPTIONS)
    assert image.shape == (3, 3, 4)
    with pytest.raises(DataError, match="is not valid base64"):
        prediction.load_image(f"data:image/png;base64,{text[:-3]}!!!", DEFAULT_OPTIONS)
    with pytest.raises(DataError, match="is a video: pass its frames"):
        prediction.load_image("walk.mp4", DEFAULT_OPTIONS)


def test_url_is_read_as_bytes(monkeypatch, tmp_path):
    """URLs support fewer formats than files: a PPM is not accepted."""
    image = Image.new("RGB", (4, 3), (1, 2, 3))
    for kind in ("png", "ppm"):
        image.save(tmp_path / f"a.{kind}")
    monkeypatch.setattr(prediction, "fetch", lambda url: (tmp_path / url[13:18]).read_bytes())
    read = partial(prediction.load_image, options=DEFAULT_OPTIONS)
    assert torch.equal(read("https://host/a.png"), read(tmp_path / "a.ppm"))
    with pytest.raises(DataError, match=r"^https://host/a\.ppm\?\.\.\.: none of JPEG, PNG"):
        read("https://host/a.ppm?key=secret")


@pytest.fixture
def paged(tmp_path: Path) -> list[str]:
    """Files with several pages (first pixels 10, 20 and 30), and files with one page."""
    pages = [Image.new("RGB", (8, 6), (value,) * 3) for value in (10, 20, 30)]
    names = []
    for name in ("scan.tif", "moving.gif", "moving.webp", "moving.png"):
        options: dict[str, Any] = {"lossless": True} if name.endswith("webp") else {}
        pages[0].save(tmp_path / name, save_all=True, append_images=pages[1:], **options)
        names.append(str(tmp_path / name))
    pages[0].save(tmp_path / "one.tif")
    return [*names, str(tmp_path / "one.tif"), str(tmp_path / "missing.tif")]


def test_each_page_of_a_file_is_an_image(paged):
    names = list_inputs([*paged, "https://host.example/a.tif"])
    expected = [f"{name}#page={page}" for name in paged[:4] for page in (1, 2, 3)]
    assert names == [*expected, *paged[4:], "https://host.example/a.tif"]
    assert split_page(names[1]) == (paged[0], 2)
    assert split_page(paged[4]) == (paged[4], None)
    Path(names[1]).touch()  # a file of this name is an image itself
    assert split_page(names[1]) == (names[1], None)


def test_pages_are_read(paged):
    names = list_inputs(paged[:5])
    images = [prediction.load_image(name, DEFAULT_OPTIONS) for name in names]
    assert [int(image[0, 0, 0]) for image in images] == [10, 20, 30] * 4 + [10]
    with pytest.raises(DataError, match="3 pages"):
        prediction.load_image(paged[0], DEFAULT_OPTIONS)
