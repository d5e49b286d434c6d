"""Files from elsewhere: FIFOs, devices and large files are refused before they are read."""

import os
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
from detlite.files.reading import open_stored_zip, read_file

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


def test_reading_allocates_the_size_of_the_file(tmp_path):
    file = tmp_path / "a"
    file.write_bytes(b"abc")
    tracemalloc.start()
    assert read_file(file, 1 << 32) == read_file(file, 3) == b"abc"
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    with pytest.raises(OSError, match="3 bytes, more than the 2 that such a file may have"):
        read_file(file, 2)


@pytest.mark.parametrize(("compression", "name"), [(0, "a.zip"), (zipfile.ZIP_DEFLATED, "b.zip")])
def test_archives_of_compressed_members_are_refused(tmp_path, compression, name):
    with zipfile.ZipFile(tmp_path / name, "w", compression) as archive:
        archive.writestr("a", bytes(100_000))
        archive.writestr("b", bytes(7))
    if compression:
        with pytest.raises(ValueError, match="its parts have 100007 bytes, more than the file"):
            open_stored_zip(tmp_path / name)
    else:
        with open_stored_zip(tmp_path / name) as archive:
            assert archive.read("b") == bytes(7)
