"""Files from elsewhere: FIFOs, devices and large files are refused before they are read."""

import os
import struct
import tracemalloc
import zipfile

import pytest

from detlite.apps.dataset_formats.file_tree import excerpt, read_lines, read_xml
from detlite.apps.report.runs import read_metrics
from detlite.checkpoint.files import read_checkpoint
from detlite.config import ConfigError, load_config
from detlite.data import DataError
from detlite.data.annotations.store import open_table
from detlite.errors import CheckpointError
from detlite.evaluation.results_file import kinds_of
from detlite.files.json_files import read_json
from detlite.files.reading import explain_not_downloaded, open_stored_zip, read_file

READERS = (
    read_checkpoint, load_config, open_table, read_json, read_xml, read_lines, excerpt, kinds_of,
    read_metrics,
)  # fmt: skip


@pytest.mark.parametrize("read", READERS)
def test_what_is_no_regular_file_is_refused(tmp_path, monkeypatch, read):
    """Opening the FIFO would block for ever."""
    monkeypatch.setenv("DETLITE_CACHE", str(tmp_path / "cache"))
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/dev/zero")
    for path in (tmp_path / "fifo", tmp_path / "link"):
        with pytest.raises((ConfigError, CheckpointError, DataError)) as refused:
            read(path)
        assert f"{path}: cannot be read" in str(refused.value)
        assert "not a regular file" in str(refused.value)


@pytest.mark.parametrize("read", [load_config, read_xml, read_lines, read_json])
def test_large_files_are_refused(tmp_path, read):
    file = tmp_path / "large"
    file.touch()
    os.truncate(file, 1 << 40)
    with pytest.raises((ConfigError, DataError), match="1099511627776 bytes, more than"):
        read(file)


def test_limits_of_a_file(tmp_path):
    file = tmp_path / "a"
    file.write_bytes(b"abc")
    assert read_file(file, 3) == b"abc"
    with pytest.raises(OSError, match="3 bytes, more than the 2 that such a file may have"):
        read_file(file, 2)


def test_reading_allocates_the_size_of_the_file(tmp_path):
    file = tmp_path / "a"
    file.write_bytes(b"abc")
    tracemalloc.start()
    read_file(file, 1 << 32)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_valid_files_have_no_hint():
    assert explain_not_downloaded(b"PK\x03\x04") == explain_not_downloaded(b"") == ""


def test_archives_of_compressed_members_are_refused(tmp_path):
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(tmp_path / f"{compression}.zip", "w", compression) as archive:
            archive.writestr("a", bytes(100_000))
            archive.writestr("b", bytes(7))
    with open_stored_zip(tmp_path / "0.zip") as archive:
        assert archive.read("b") == bytes(7)
    with pytest.raises(ValueError, match="its parts have 100007 bytes, more than the file"):
        open_stored_zip(tmp_path / "8.zip")


def with_second_directory(content):
    """Return an archive with a directory of other members, in front of its end record.

    The record states the offset of the first directory, but Python uses the second.
    """
    end = content.rfind(b"PK\x05\x06")
    size, offset = struct.unpack_from("<II", content, end + 12)
    name, member = b"x", b"PK\x03\x04" + struct.pack("<HHHHHIIIHH", 20, *[0] * 7, 1, 0) + b"x"
    shift = end + len(member) - offset
    entry = b"PK\x01\x02" + struct.pack("<HHHHHHIIIHHHHHII", 20, 20, *[0] * 7, 1, *[0] * 5,
                                        (end - shift) % 2**32)  # fmt: skip
    directory = (entry + name).ljust(size, b"\0")
    record = struct.pack("<HHHHIIH", 0, 0, 1, 1, size, offset, 0)
    return content[:end] + member + directory + b"PK\x05\x06" + record


def test_archives_with_two_directories_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", bytes(100))
    (tmp_path / "b.zip").write_bytes(with_second_directory((tmp_path / "a.zip").read_bytes()))
    assert zipfile.ZipFile(tmp_path / "b.zip").namelist() == ["x"]
    with pytest.raises(ValueError, match="directory of members is ambiguous"):
        open_stored_zip(tmp_path / "b.zip")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_archives_with_two_members_of_a_name_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a", b"1")
        archive.writestr("a", b"2")
    with pytest.raises(ValueError, match="directory of members is ambiguous"):
        open_stored_zip(tmp_path / "a.zip")


def test_archives_with_records_of_64_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 2)  # more members need such records
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for number in range(3):
            archive.writestr(str(number), b"")
    assert b"PK\x06\x06" in (tmp_path / "a.zip").read_bytes()
    with open_stored_zip(tmp_path / "a.zip") as archive:
        assert archive.namelist() == ["0", "1", "2"]
