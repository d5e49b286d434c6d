"""The cache of tables: when one is built, damaged tables, and full disks."""

import json
import logging
import multiprocessing
import os
import pickle
import tempfile
import time
import tracemalloc

import pytest
import torch

from detlite.data import CocoDataset, DataError
from detlite.data.annotations import store
from detlite.data.annotations.store import open_table
from detlite.files.cache import VARIABLE, _temporary_folder, process_folder


@pytest.fixture
def built(monkeypatch):
    """Record the annotation files whose index is built."""
    files = []
    write_table = store.write_table

    def counting(file, *args):
        files.append(file)
        write_table(file, *args)

    monkeypatch.setattr(store, "write_table", counting)
    return files


def touch(path, age=100.0):
    """Set the time of a file to `age` seconds ago."""
    moment = time.time() - age
    os.utime(path, (moment, moment))


def rows_of(table):
    return table.rows(table.selected(0))


def indexes(cache):
    return sorted(cache.glob("*.index"))


def test_content_decides(content, write_set, cache, built, settled, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    hashed = []
    content_hash = store.content_hash
    monkeypatch.setattr(
        store, "content_hash", lambda file: (hashed.append(file), content_hash(file))[1]
    )
    file, _ = write_set(content)
    copy, _ = write_set(content, "copy")
    open_table(file)
    open_table(file)
    assert hashed == [file]  # the note is valid
    assert caplog.text.count(f"{file}: built its index in ") == 1
    assert len(pickle.dumps(open_table(file))) < 1000  # without annotations
    touch(file)
    open_table(file)
    open_table(copy)
    assert hashed == [file, file, copy]
    assert built == [file]
    content["annotations"][0]["category_id"] = 3  # of the same length
    file.write_text(json.dumps(content))
    touch(file)
    assert rows_of(open_table(file))[0]["category_id"] == 3
    assert built == [file, file]


def test_a_recently_written_file_is_read_again(content, write_set, cache, built):
    """Writing the file again may not change its times."""
    file, _ = write_set(content)
    for category in (7, 3):
        content["annotations"][0]["category_id"] = category
        before = file.stat()
        file.write_text(json.dumps(content))
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert rows_of(open_table(file))[0]["category_id"] == category
    assert not list(cache.glob("*.note"))


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "table", "other", "version"])
def test_damaged_and_foreign_indexes_are_built_again(
    content, write_set, cache, built, damage, tmp_path
):
    file, _ = write_set(content)
    open_table(file)
    (path,) = indexes(cache)
    valid = path.read_bytes()
    content["info"] = {"other": 1}
    other = write_set(content, "other")[0]
    damaged = {
        "empty": lambda: b"",
        "text": lambda: b"[]" * 100,
        "cut": lambda: valid[:-1],
        "table": lambda: valid.replace(b'"findings"', b'"fundings"'),
        "other": lambda: open_table(other).path.read_bytes(),
        "version": lambda: valid[:-8] + bytes(8),
    }[damage]()
    path.write_bytes(damaged)
    built.clear()
    assert [row["id"] for row in rows_of(open_table(file))] == [1, 3]
    assert built == [file]
    assert path.read_bytes() == valid


@pytest.mark.parametrize("damage", ["truncated", "overwritten"])
def test_error_if_the_index_is_damaged_in_use(content, open_set, cache, damage):
    dataset = open_set(content, train=True)
    path = dataset.table.path
    if damage == "truncated":
        os.truncate(path, 100)
    else:
        path.write_bytes(path.read_bytes().replace(b'"category_id": 7', b'"category_id"; 7'))
    with pytest.raises(DataError, match=r"\.index: the index is damaged\. Delete the file"):
        dataset[0]


def test_error_if_the_file_changes_while_it_is_read(content, write_set, cache, monkeypatch):
    file, _ = write_set(content)
    hashes = iter("01")
    monkeypatch.setattr(store, "content_hash", lambda file: next(hashes) * 40)
    with pytest.raises(DataError, match="the file changed while it was read"):
        open_table(file)
    assert not list(cache.glob("*.index"))
    assert not list(cache.glob(".*.tmp"))


def test_invalid_file_leaves_no_index(content, write_set, cache):
    file, folder = write_set(content)
    file.write_text(file.read_text()[:-1])
    with pytest.raises(DataError, match="not valid JSON"):
        CocoDataset(file, folder)
    assert not [path for path in cache.iterdir() if path.suffix != ".lock"]


@pytest.mark.parametrize("kind", ["off", "not a folder", "full"])
def test_index_in_a_temporary_folder(content, open_set, cache, monkeypatch, tmp_path, kind, caplog):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    _temporary_folder.cache_clear()
    if kind == "off":
        monkeypatch.setenv(VARIABLE, "")
    elif kind == "not a folder":
        cache.write_text("")
    else:
        write_texts = store._write_texts

        def full(stream, texts):
            if str(cache) in stream.name:
                raise OSError(28, "No space left on device")
            return write_texts(stream, texts)

        monkeypatch.setattr(store, "_write_texts", full)
    dataset = open_set(content, train=True)
    copy = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(copy[0][1]["boxes"], dataset[0][1]["boxes"])
    assert dataset.table.path.parent == process_folder()
    assert ("built in a temporary folder" in caplog.text) == (kind != "off")
    _temporary_folder.cache_clear()


def test_no_space_anywhere(content, write_set, cache, monkeypatch, tmp_path):
    cache.write_text("")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    _temporary_folder.cache_clear()
    with pytest.raises(DataError, match=r"no space for the index.*DETLITE_CACHE"):
        open_table(write_set(content)[0])


def test_only_old_indexes_are_deleted(content, write_set, cache):
    cache.mkdir()
    old = [f"{'a' * 40}.index", f".{'b' * 40}-by-url-12-34.tmp", f"{'c' * 40}.pictures"]
    others = ["mine.index", f"{'a' * 40}.json", "notes"]
    for name in (*old, *others):
        (cache / name).write_text("")
        touch(cache / name)
    for name in (*old[:2], *others):
        touch(cache / name, 31 * 86400)
    open_table(write_set(content)[0])
    left = {path.name for path in cache.iterdir()}
    assert left.isdisjoint(old[:2])
    assert left.issuperset([old[2], *others])


def test_concurrent_processes_build_one_index(content, write_set, cache, tmp_path, monkeypatch):
    file, _ = write_set(content)
    note, write_table = tmp_path / "built", store.write_table
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(4)

    def counting(*args):
        with note.open("a") as opened:
            opened.write("once")
        write_table(*args)

    def run():
        barrier.wait()
        assert len(rows_of(open_table(file))) == 2

    monkeypatch.setattr(store, "write_table", counting)
    processes = [context.Process(target=run) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert note.read_text() == "once"


def test_memory_is_bounded(content, write_set, cache):
    """Only the positions of the entries are in memory."""
    row = content["annotations"][0]
    content["annotations"] = [{**row, "id": i, "note": "x" * 100_000} for i in range(300)]
    file, _ = write_set(content)
    tracemalloc.start()
    try:
        open_table(file)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert file.stat().st_size > 30_000_000
    assert peak < file.stat().st_size
