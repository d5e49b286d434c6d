"""Atomic writes: a failure leaves the old file, and no temporary file."""

from pathlib import Path

import pytest

from detlite.files.atomic_write import atomic_open, atomic_path, write_file
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
    (tmp_path / "results.json.tmp").symlink_to("/dev/full")
    with (
        pytest.raises(OSError, match=r"cannot be written \(No space left .*results\.json'$"),
        atomic_open(file) as stream,
    ):
        stream.write("new")
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
