"""Atomic writes: a failure leaves the old file, and no temporary file."""

import resource
from pathlib import Path

import pytest

from detlite.files.atomic_write import (
    atomic_open,
    make_folder,
    open_to_append,
    write_file,
    write_json,
)
from detlite.files.errors import DataError
from detlite.files.json_files import read_json
from tests.builders import run_python


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "results.json"
    file.write_text("old")
    return file


def test_replaces_the_file(file: Path) -> None:
    for unique in (False, True):
        with atomic_open(file, "wb", unique) as stream:
            stream.write(b"\xff")
            stream.flush()
            assert file.read_bytes() == (b"\xff" if unique else b"old")
        assert [*file.parent.iterdir()] == [file]


def test_what_a_killed_process_left_is_replaced(file: Path) -> None:
    code = """
import os, sys
from pathlib import Path
from detlite.files.atomic_write import atomic_open
with atomic_open(Path(sys.argv[1])) as stream:
    stream.write("{")
    stream.flush()
    os._exit(1)
"""
    run_python(code, file)
    assert len([*file.parent.iterdir()]) == 2
    write_json(file, {})
    assert [*file.parent.iterdir()] == [file]


def test_a_full_disk_names_the_file(file: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))  # of any file, like a full disk
    try:
        with (
            pytest.raises(OSError, match=r"cannot be written \(File too large.*results\.json'$"),
            atomic_open(file) as stream,
        ):
            stream.write("new")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.read_text() == "old"
    assert [*file.parent.iterdir()] == [file]


def test_missing_folders(tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match=r"cannot be written \(No such file .*nowhere/results"),
        atomic_open(tmp_path / "nowhere" / "results.json"),
    ):
        pass
    write_file(tmp_path / "new/a.json", b"{}")
    assert read_json(tmp_path / "new/a.json") == {}
    with pytest.raises(DataError, match=r"b\.json: cannot be written \(.*File exists"):
        write_file(tmp_path / "new/a.json/b.json", b"{}")


def test_links_are_not_followed(file: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    for name, target in (("a.txt", file), ("a.txt.tmp", file), ("folder", tmp_path / "other")):
        (tmp_path / name).symlink_to(target)
    with pytest.raises(OSError, match=r"is a symbolic link: remove it.*a\.txt"):
        open_to_append(tmp_path / "a.txt")
    with pytest.raises(OSError, match=r"is a symbolic link: remove it.*folder"):
        make_folder(tmp_path / "folder")
    with atomic_open(tmp_path / "a.txt") as stream:
        stream.write("new")
    assert (tmp_path / "a.txt").read_text() == "new"
    assert not (tmp_path / "a.txt").is_symlink()
    assert file.read_text() == "old"
    make_folder(tmp_path / "folder" / "drawn")  # the output folder itself may be a link
    open_to_append(tmp_path / "folder" / "file").close()
    assert not (tmp_path / "folder" / "file").stat().st_mode & 0o111  # no program
    assert sorted(path.name for path in (tmp_path / "other").iterdir()) == ["drawn", "file"]
