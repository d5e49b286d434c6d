"""Test listing and reading the inputs of `--input`."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from detlite.apps.batch_predict.input_sources import (
    expand_pages,
    list_images,
    load_image,
    output_stem,
    split_page,
)
from detlite.data import DataError
from detlite.data.images.pixels import DEFAULT_OPTIONS
from detlite.data.images.reading import read_image
from detlite.inference import prediction


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
    assert list_images(inputs) == [f"photos/{name}" for name in names]


def test_links_to_folders_are_followed_once(photos):
    """Three links of a folder to itself would have 3 ** 40 paths."""
    for name in "xyz":
        (photos / "deep" / name).symlink_to(photos / "deep")
    (photos / "deep" / ".hidden").mkdir()
    (photos / "deep" / ".hidden" / "f.jpg").touch()
    (photos.parent / "linked").mkdir()
    (photos.parent / "linked" / "sub").symlink_to(photos / "deep")
    for source in ("linked", "linked/**/*.jp*g", "l*/**/s*/**/*.jp*g"):
        found = list_images([source])
        assert [path.rpartition("sub/")[2] for path in found] == ["d.jpg", "er/e.jpeg"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be"])
def test_lists_of_paths_and_urls(photos, encoding):
    lines = "\ufeffphotos/b.jpg\r\n\nhttps://host/x.jpg\nphotos/ä b.png\n"
    Path("list.txt").write_text(lines, encoding=encoding)
    expected = ["photos/b.jpg", "https://host/x.jpg", "photos/ä b.png"]
    assert list_images(["list.txt"]) == expected
    assert list_images(["HTTP://host/y", "list.txt"]) == ["HTTP://host/y", *expected]


def test_excluded_folder(photos):
    drawn = photos / "deep"
    assert list_images(["photos/**/*.jp*g"], [drawn]) == ["photos/[1].jpg", "photos/b.jpg"]
    assert list_images(["photos/deep/d.jpg"], [drawn]) == ["photos/deep/d.jpg"]  # named explicitly


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
        list_images([source])


@pytest.mark.parametrize("kind", ["fifo", "device", "huge"])
def test_lists_that_are_no_regular_files(tmp_path, kind, monkeypatch):
    file = tmp_path / "list.txt"
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    else:
        file.touch()
        os.truncate(file, (1 << 30) + 1)
    with pytest.raises(DataError, match=r"not a regular file|more than the 1073741824 that"):
        list_images([str(file)])


def test_output_stems():
    assert output_stem("a\x1b[31m\n\u202eb.jpg") == "a_[31m__b"
    assert output_stem("photos/a b.c.jpg") == "a b.c"
    assert output_stem("https://host/some/pic%2Fture.jpg?size=3#x") == "pic_ture"
    assert len(output_stem("x" * 200 + ".jpg")) == 50


@pytest.mark.parametrize("source", ["s3://bucket/a.jpg", "gs://bucket/*.jpg", "list.txt"])
def test_unsupported_urls(photos, source):
    Path("list.txt").write_text("photos/b.jpg\nftp://host/a.jpg")
    with pytest.raises(DataError, match=r"^\w+://.*jpg: only http and https URLs are supported"):
        list_images([source])


class Reader:
    """Replaces a Predictor: only reads images."""

    def load(self, image: Any, page: int | None = None) -> Any:
        return read_image(image, page=page)


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
    listed = list_images([str(tmp_path)], [tmp_path / "drawn"])
    assert listed == [str(tmp_path / "a[1]/1.png"), str(tmp_path / "b/2.jpg")]
    (tmp_path / "0.jpg").touch()
    assert list_images([str(tmp_path)]) == [str(tmp_path / "0.jpg")]


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
    names = expand_pages([*paged, "https://host.example/a.tif"], DEFAULT_OPTIONS)
    expected = [f"{name}#page={page}" for name in paged[:4] for page in (1, 2, 3)]
    assert names == [*expected, *paged[4:], "https://host.example/a.tif"]
    assert split_page(names[1]) == (paged[0], 2)
    assert split_page(paged[4]) == (paged[4], None)
    assert [output_stem(name) for name in names[1:4]] == [
        "scan_page2",
        "scan_page3",
        "moving_page1",
    ]
    Path(names[1]).touch()  # a file of this name is an image itself
    assert split_page(names[1]) == (names[1], None)


def test_pages_are_read(paged):
    reader: Any = Reader()
    names = expand_pages(paged[:5], DEFAULT_OPTIONS)
    images: list[Any] = [load_image(reader, name) for name in names]
    assert [int(image[0, 0, 0]) for image in images] == [10, 20, 30] * 4 + [10]
    with pytest.raises(DataError, match="3 pages"):
        load_image(reader, paged[0])
