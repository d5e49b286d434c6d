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
from detlite.inference.inputs import expand_input, is_video_name, split_page


def list_inputs(inputs: Sequence[str], exclude: Sequence[Path] = ()) -> list[str]:
    return [*predict_run.list_inputs(inputs, DEFAULT_OPTIONS, exclude)]


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a folder of empty files in the current folder."""
    monkeypatch.chdir(tmp_path)
    names = ("b.jpg", "a.PNG", "c.txt", "deep/d.jpg", "deep/er/e.jpeg", "deep/notes", "[1].jpg")
    for name in names:
        file = tmp_path / "photos" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return tmp_path / "photos"


@pytest.mark.parametrize(
    ("inputs", "names"),
    [
        (["photos"], ["[1].jpg", "a.PNG", "b.jpg"]),
        (["photos/"], ["[1].jpg", "a.PNG", "b.jpg"]),
        (["photos/**/*.jp*g"], ["[1].jpg", "b.jpg", "deep/d.jpg", "deep/er/e.jpeg"]),
        (["photos/**"], ["[1].jpg", "a.PNG", "b.jpg", "deep/d.jpg", "deep/er/e.jpeg"]),
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


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be"])
def test_lists_of_paths_and_urls(photos, encoding):
    lines = "\ufeffphotos/b.jpg\r\n\nhttps://host/x.jpg\nphotos/ä b.png\n"
    Path("list.txt").write_text(lines, encoding=encoding)
    expected = ["photos/b.jpg", "https://host/x.jpg", "photos/ä b.png"]
    assert list_inputs(["list.txt"]) == expected
    assert list_inputs(["HTTP://host/y", "list.txt"]) == ["HTTP://host/y", *expected]


def test_excluded_folder(photos):
    drawn = photos / "deep"
    assert list_inputs(["photos/**/*.jp*g"], [drawn]) == ["photos/[1].jpg", "photos/b.jpg"]
    assert list_inputs(["photos/deep/d.jpg"], [drawn]) == ["photos/deep/d.jpg"]  # named explicitly


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("empty", "empty: the folder contains no images"),
        ("photos/*.gif", r"photos/\*\.gif: no image matches this pattern"),
        ("photos/c.txt", "photos/c.txt: the list contains no paths"),
        ("none.txt", r"none.txt: the list of images cannot be read \(.*No such file"),
        ("binary.txt", r"binary.txt: the list of images cannot be read \(.*utf-8"),
    ],
)
def test_inputs_without_images(photos, source, message):
    Path("empty").mkdir()
    Path("binary.txt").write_bytes(b"\x89\xfe\x00")
    with pytest.raises(DataError, match=message):
        list_inputs([source])


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


def test_urls_stay_as_they_are(photos):
    names = ["s3://bucket/a.jpg", "rtsp://host/live", "data:image/png;base64,aGk="]
    assert list_inputs(names) == names
    assert list_inputs([(photos / "b.jpg").as_uri()]) == [str(photos / "b.jpg")]


@pytest.mark.parametrize(("source", "message"), [
    ("", "an input is empty"), (" ", "an input is empty"),
    ("A" * 5000, "too long for a path. Decode base64"),
])  # fmt: skip
def test_texts_that_are_no_names(source, message):
    with pytest.raises(DataError, match=message) as caught:
        expand_input(source)
    assert len(str(caught.value)) < 300


def test_zip_files(photos, tmp_path):
    with zipfile.ZipFile("photos.zip", "w") as archive:
        Image.new("RGB", (4, 3), (1, 2, 3)).save("a.png")
        for name in ("deep/a.png", "notes.txt"):
            archive.write("a.png", name)
    (name,) = list_inputs(["photos.zip"])
    assert name == "zip://deep/a.png::photos.zip"
    image = prediction.load_image(name, DEFAULT_OPTIONS)
    assert image[:, 0, 0].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("label,path\ncat,b.jpg\ndog,c.jpg\ncat,b.jpg\n", ["b.jpg", "c.jpg"]),
        ("b.jpg\nc.jpg\n", ["b.jpg", "c.jpg"]),
        ('"a, b.jpg"\n', ["a, b.jpg"]),
    ],
)
def test_tables(tmp_path, text, names):
    (tmp_path / "list.csv").write_text(text)
    assert list_inputs([str(tmp_path / "list.csv")]) == names


def test_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("a.jpg\n\nhttps://host/b.jpg\n"))
    assert list_inputs(["-"]) == ["a.jpg", "https://host/b.jpg"]


def test_videos_are_listed_with_images(photos):
    (photos / "deep/walk.MP4").touch()
    assert list_inputs(["photos/deep"]) == ["photos/deep/d.jpg", "photos/deep/walk.MP4"]
    assert list_inputs(["photos/**/*.MP4"]) == ["photos/deep/walk.MP4"]
    names = ["a.mp4", "7", "rtsp://host/live", "https://host/a.mp4?key=1", "a.jpg", "s3://b/a.jpg"]
    assert list(map(is_video_name, names)) == [True] * 4 + [False] * 2


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


def test_a_folder_of_folders(tmp_path):
    """Images of subfolders are listed if the folder itself has none."""
    for name in ("b/2.jpg", "a[1]/1.png", "drawn/3.jpg", "a[1]/notes.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".DS_Store").touch()
    listed = list_inputs([str(tmp_path)], [tmp_path / "drawn"])
    assert listed == [str(tmp_path / "a[1]/1.png"), str(tmp_path / "b/2.jpg")]
    (tmp_path / "0.jpg").touch()
    assert list_inputs([str(tmp_path)]) == [str(tmp_path / "0.jpg")]


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
