"""Atomic writes: a failure leaves the old file, and no temporary file."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from detlite.files.atomic_write import (
    atomic_open,
    atomic_path,
    make_folder,
    open_to_append,
    write_file,
    write_json,
)
from detlite.files.errors import DataError
from detlite.files.json_files import read_json


@pytest.mark.parametrize("unique", [False, True])
def test_replaces_the_file(tmp_path: Path, unique: bool) -> None:
    file = tmp_path / "file.txt"
    file.write_text("old")
    with atomic_open(file, unique=unique) as stream:
        stream.write("new")
        stream.flush()
        assert file.read_text() == "old"
    assert file.read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["file.txt"]


def test_what_killed_processes_left_is_deleted(tmp_path: Path) -> None:
    file = tmp_path / "all.json"
    code = """
import os, sys
from pathlib import Path
from detlite.files.atomic_write import atomic_path
with atomic_path(Path(sys.argv[1]), unique=True) as temporary:
    temporary.write_text("{")
    os._exit(1)
"""
    subprocess.run([sys.executable, "-c", code, str(file)], check=False)
    with atomic_path(file, unique=True) as own:  # another write that has not ended
        own.write_text("[]")
        assert len([*tmp_path.iterdir()]) == 2
        write_json(file, {})
        assert {*tmp_path.iterdir()} == {own, file}
    assert [*tmp_path.iterdir()] == [file]


def test_bytes(tmp_path: Path) -> None:
    with atomic_open(tmp_path / "file", "wb") as stream:
        stream.write(b"\xff")
    assert (tmp_path / "file").read_bytes() == b"\xff"


def test_an_error_keeps_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "file.txt"
    file.write_text("old")

    def fail_after_writing() -> None:
        with atomic_path(file) as temporary:
            temporary.write_text("new")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail_after_writing()
    assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file.txt"]


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    file.write_text("old")
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
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_a_missing_folder(tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match=r"cannot be written \(No such file .*nowhere/results"),
        atomic_open(tmp_path / "nowhere" / "results.json"),
    ):
        pass


def test_write_to_a_new_folder(tmp_path: Path) -> None:
    write_file(tmp_path / "new/a.json", b"{}")
    assert read_json(tmp_path / "new/a.json") == {}
    with pytest.raises(DataError, match=r"b\.json: cannot be written \(.*File exists"):
        write_file(tmp_path / "new/a.json/b.json", b"{}")


def test_links_in_the_folder_are_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("untouched")
    for name in ("file.txt", "file.txt.tmp"):
        (tmp_path / name).symlink_to(other)
    with atomic_open(tmp_path / "file.txt") as stream:
        stream.write("new")
    assert other.read_text() == "untouched"
    assert (tmp_path / "file.txt").read_text() == "new"
    assert not (tmp_path / "file.txt").is_symlink()


def test_links_are_not_appended_to_or_taken_for_folders(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    for name, target in (("file", "missing.txt"), ("folder", "other")):
        (tmp_path / name).symlink_to(tmp_path / target)
    with pytest.raises(OSError, match=r"is a symbolic link: remove it.*file"):
        open_to_append(tmp_path / "file")
    with pytest.raises(OSError, match=r"is a symbolic link: remove it.*folder"):
        make_folder(tmp_path / "folder")
    assert not (tmp_path / "missing.txt").exists()
    (tmp_path / "output").symlink_to(tmp_path / "other")  # the output folder itself may be one
    make_folder(tmp_path / "output" / "drawn")
    open_to_append(tmp_path / "output" / "file").close()
    assert sorted(path.name for path in (tmp_path / "other").iterdir()) == ["drawn", "file"]
