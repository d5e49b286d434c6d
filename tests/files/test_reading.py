"""Files from elsewhere: refused before they are read, and explained if they are not JSON."""

import os
import tracemalloc
import zipfile

import pytest

from detlite.apps.dataset_formats.file_tree import excerpt, read_lines, read_xml
from detlite.apps.report.runs import read_metrics
from detlite.checkpoint.files import read_checkpoint
from detlite.config import ConfigError, load_config
from detlite.data.annotations.store import open_table
from detlite.errors import CheckpointError
from detlite.evaluation.results_file import kinds_of
from detlite.files.errors import DataError
from detlite.files.json_files import explain_not_coco, explain_not_json, read_json
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "; it is empty"),
        ("0 0.5 0.5 0.1 0.1\n1 0.5 0.5 0.1 0.1\n", "; it contains YOLO labels: "),
        ("<annotation></annotation>", "; it is XML, for example of PASCAL VOC: "),
        ("<!doctype HTML>", "; it is a web page: "),
        ("version https://git-lfs.github.com/spec/v1\n", "; it is a git-lfs pointer"),
        ("{'images': []}", "; it has single quotes"),
        ('{"images": [1, 2,\n ]}', "; remove the comma before the closing bracket"),
        ('{"a": 1}\n{"a": 2}\n', "; it has several JSON values, as JSON lines"),
        (b"\x1f\x8b\x08\0", "; it is compressed"),
        ("b\xe4h".encode("latin-1"), "; an editor saved it in another encoding"),
        ("[" * 100_000, ""),
        ('{"images": ', ""),
    ],
)
def test_hints_about_files(tmp_path, text, message):
    file = tmp_path / "a.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=r"a\.json: cannot be read as JSON: ") as error:
        read_json(file)
    assert message in str(error.value) if message else "; " not in str(error.value)


def test_missing_file(tmp_path):
    with pytest.raises(DataError, match=r"none\.json: cannot be read: No such file"):
        read_json(tmp_path / "none.json")
    assert explain_not_json(tmp_path / "none.json", ValueError()) == ""


@pytest.mark.parametrize(
    ("keys", "hint"),
    [
        ({"shapes", "imagePath"}, "; it contains LabelMe labels: "),
        ({"annotations"}, "; 'images', 'annotations' and 'categories' are all required"),
        ({"Images", "a"}, "; write Images in lower case"),
        ({"a"}, ""),
    ],
)
def test_hints_about_keys(keys, hint):
    assert explain_not_coco(keys).startswith(hint)
