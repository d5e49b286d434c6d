"""What `--input` names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from detlite.apps.batch_predict import input_sources as inputs
from detlite.apps.batch_predict.input_sources import list_pictures, load_picture, stem_of
from detlite.data import DataError
from detlite.data.loading.image_io import read_image


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of empty files, which is the current one."""
    monkeypatch.chdir(tmp_path)
    names = ("b.jpg", "a.PNG", "c.txt", "deep/d.jpg", "deep/er/e.jpeg", "deep/notes", "[1].jpg")
    for name in names:
        file = tmp_path / "photos" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return tmp_path / "photos"


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["photos"], ["[1].jpg", "a.PNG", "b.jpg"]),
        (["photos/"], ["[1].jpg", "a.PNG", "b.jpg"]),
        (["photos/**/*.jp*g"], ["[1].jpg", "b.jpg", "deep/d.jpg", "deep/er/e.jpeg"]),
        (["photos/deep/*"], ["deep/d.jpg"]),
        (["photos/[1].jpg"], ["[1].jpg"]),  # a file of this name
        (["photos/[ab].*"], ["a.PNG", "b.jpg"]),
        (["photos/b.jpg", "photos/none.jpg", "photos"],
         ["b.jpg", "none.jpg", "[1].jpg", "a.PNG", "b.jpg"]),
    ],
)  # fmt: skip
def test_files_folders_and_globs(photos: Path, given: list[str], names: list[str]) -> None:
    assert list_pictures(given) == [f"photos/{name}" for name in names]


def test_lists_hold_paths_and_addresses(photos: Path) -> None:
    lines = "\ufeffphotos/b.jpg\r\n\nhttps://host/x.jpg\nphotos/ä b.png\n"
    Path("list.txt").write_text(lines, encoding="utf-8")
    wanted = ["photos/b.jpg", "https://host/x.jpg", "photos/ä b.png"]
    assert list_pictures(["list.txt"]) == wanted
    assert list_pictures(["HTTP://host/y", "list.txt"]) == ["HTTP://host/y", *wanted]


def test_what_is_drawn_is_left_out(photos: Path) -> None:
    drawn = photos / "deep"
    assert list_pictures(["photos/**/*.jp*g"], drawn) == ["photos/[1].jpg", "photos/b.jpg"]
    assert list_pictures(["photos/deep/d.jpg"], drawn) == ["photos/deep/d.jpg"]  # it was named


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("empty", "empty: there is no picture in this folder"),
        ("photos/*.gif", "photos/*.gif: no picture matches this pattern"),
        ("photos/c.txt", "photos/c.txt: there is no path in this list"),
        ("none.txt", "none.txt: this list of pictures cannot be read (.*No such file"),
        ("binary.txt", "binary.txt: this list of pictures cannot be read (.*utf-8"),
    ],
)
def test_nothing_there_is_named(photos: Path, given: str, message: str) -> None:
    Path("empty").mkdir()
    Path("binary.txt").write_bytes(b"\xff\xfe\x00")
    pattern = message.replace("*.gif", r"\*\.gif").replace("(", r"\(")
    with pytest.raises(DataError, match=pattern):
        list_pictures([given])


def test_names_of_drawn_pictures() -> None:
    assert stem_of("photos/a b.c.jpg") == "a b.c"
    assert stem_of("https://host/some/pic%2Fture.jpg?size=3#x") == "pic_ture"
    assert len(stem_of("x" * 200 + ".jpg")) == 50


@pytest.mark.parametrize("given", ["s3://bucket/a.jpg", "gs://bucket/*.jpg", "list.txt"])
def test_addresses_of_other_kinds_are_named(photos: Path, given: str) -> None:
    Path("list.txt").write_text("photos/b.jpg\nftp://host/a.jpg")
    with pytest.raises(
        DataError, match=r"^\w+://.*jpg: only addresses of http and https are taken"
    ):
        list_pictures([given])


class Reader:
    """Stands for a Predictor: reads pictures alone."""

    def load(self, picture: Any) -> Any:
        return read_image(picture)


def test_an_address_is_read_as_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of the formats of the web alone: a PPM is none."""
    picture = Image.new("RGB", (4, 3), (1, 2, 3))
    for kind in ("png", "ppm"):
        picture.save(tmp_path / f"a.{kind}")
    monkeypatch.setattr(inputs, "fetch", lambda address: (tmp_path / address[13:18]).read_bytes())
    reader: Any = Reader()
    own = load_picture(reader, str(tmp_path / "a.ppm"))
    assert torch.equal(load_picture(reader, "https://host/a.png"), own)
    with pytest.raises(DataError, match=r"^https://host/a\.ppm\?\.\.\.: none of JPEG, PNG"):
        load_picture(reader, "https://host/a.ppm?key=secret")
