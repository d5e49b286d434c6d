"""Where an index is kept, when one is made, and what comes of damaged ones and full disks."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import pickle
import tempfile
import time

import pytest
import torch

from detlite.data import CocoDataset, DataError
from detlite.data.index import cache as index_cache
from detlite.data.cache_folder import CACHE_VARIABLE
from detlite.data.index.build import open_index


@pytest.fixture
def made(monkeypatch):
    """The annotation files that an index was made of."""
    files = []
    write_index = index_cache.write_index

    def counting(file, *args):
        files.append(file)
        write_index(file, *args)

    monkeypatch.setattr(index_cache, "write_index", counting)
    return files


def touch(path, age=100.0):
    """Makes a file look as if it was last written so many seconds ago."""
    moment = time.time() - age
    os.utime(path, (moment, moment))


def indexes(cache):
    return sorted(cache.glob("*.index"))


def test_it_is_made_once(content, write_set, cache, made, settled):
    file, folder = write_set(content)
    first = CocoDataset(file, folder, train=True)
    second = CocoDataset(file, folder, masks=False)
    assert made == [file]
    assert len(indexes(cache)) == 1
    assert torch.equal(first[0][1]["boxes"], second[0][1]["boxes"])


def test_the_content_is_what_counts(content, write_set, cache, made, settled, monkeypatch):
    hashed = []
    content_hash = index_cache.content_hash
    monkeypatch.setattr(
        index_cache, "content_hash", lambda file: (hashed.append(file), content_hash(file))[1]
    )
    file, _ = write_set(content)
    copy, _ = write_set(content, "copy")
    open_index(file)
    open_index(file)
    assert hashed == [file]  # a note tells that it is the same
    touch(file)
    open_index(file)
    open_index(copy)
    assert hashed == [file, file, copy]
    assert made == [file]
    content["annotations"][0]["category_id"] = 3  # of the same length
    file.write_text(json.dumps(content))
    touch(file)
    assert open_index(file).annotations(0, 0)[0]["category_id"] == 3
    assert made == [file, file]


def test_a_file_that_was_just_written_is_read_again(content, write_set, cache, made):
    """Its times may not change when it is written once more."""
    file, _ = write_set(content)
    for category in (7, 3):
        content["annotations"][0]["category_id"] = category
        before = file.stat()
        file.write_text(json.dumps(content))
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert open_index(file).annotations(0, 0)[0]["category_id"] == category
    assert not list(cache.glob("*.note"))


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "longer", "table", "version", "other"])
def test_damaged_and_foreign_indexes_are_made_anew(
    content, write_set, cache, made, damage, tmp_path
):
    file, _ = write_set(content)
    open_index(file)
    (path,) = indexes(cache)
    sound = path.read_bytes()
    content["info"] = {"other": 1}
    other = write_set(content, "other")[0]
    damaged = {
        "empty": lambda: b"",
        "text": lambda: b"[]" * 100,
        "cut": lambda: sound[:-1],
        "longer": lambda: sound + b" ",
        "table": lambda: sound[:-50] + b"x" + sound[-49:],
        "version": lambda: sound.replace(b"detlite index ", b"detlite index 9", 1)[: len(sound)],
        "other": lambda: open_index(other).file.path.read_bytes(),
    }[damage]()
    path.write_bytes(damaged)
    made.clear()
    assert [row["id"] for row in open_index(file).annotations(0, 0)] == [1, 3]
    assert made == [file]
    assert path.read_bytes() == sound


def test_an_index_that_is_cut_off_in_use_is_an_error(content, write_set, cache):
    dataset = CocoDataset(*write_set(content))
    path = dataset._index.file.path
    os.truncate(path, 100)
    with pytest.raises(DataError, match=r"\.index: the index was cut off while in use"):
        dataset[0]


def test_an_entry_that_was_overwritten_is_an_error(content, write_set, cache):
    dataset = CocoDataset(*write_set(content))
    path = dataset._index.file.path
    path.write_bytes(path.read_bytes().replace(b'"category_id": 7', b'"category_id"; 7'))
    with pytest.raises(DataError, match=r"\.index: the index is damaged; delete this file"):
        dataset[0]


def test_a_file_that_changes_while_it_is_read(content, write_set, cache, monkeypatch):
    file, _ = write_set(content)
    monkeypatch.setattr(index_cache, "content_hash", lambda file: "0" * 40)
    with pytest.raises(DataError, match="was changed while it was read"):
        open_index(file)
    assert not list(cache.glob("*.index"))
    assert not list(cache.glob(".*.tmp"))


def test_nothing_is_left_of_a_bad_file(content, write_set, cache):
    file, folder = write_set(content)
    file.write_text(file.read_text()[:-1])
    with pytest.raises(DataError, match="is not JSON"):
        CocoDataset(file, folder)
    assert not [path for path in cache.iterdir() if path.suffix != ".lock"]


@pytest.mark.parametrize("kind", ["none wanted", "not a folder", "full"])
def test_without_a_folder_the_index_is_temporary(
    content, write_set, cache, monkeypatch, tmp_path, kind, caplog
):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    if kind == "none wanted":
        monkeypatch.setenv(CACHE_VARIABLE, "")
    elif kind == "not a folder":
        cache.write_text("")
    else:
        write = index_cache.IndexWriter.finish

        def full(self, **table):
            if str(cache) in self._file.name:
                raise OSError(28, "No space left on device")
            write(self, **table)

        monkeypatch.setattr(index_cache.IndexWriter, "finish", full)
    dataset = CocoDataset(*write_set(content), train=True)
    copy = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(copy[0][1]["boxes"], dataset[0][1]["boxes"])
    assert len(list(temporary.iterdir())) == 1
    assert ("made in a temporary file" in caplog.text) == (kind != "none wanted")
    del dataset, copy
    assert not list(temporary.iterdir())


def test_no_room_anywhere(content, write_set, cache, monkeypatch, tmp_path):
    cache.write_text("")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(DataError, match=r"no room for its index.*DETLITE_CACHE"):
        open_index(write_set(content)[0])


def test_old_indexes_are_deleted_and_nothing_else(content, write_set, cache):
    cache.mkdir()
    old = [f"{'a' * 40}.index", f".{'b' * 40}-by-url-12-34.tmp", f"{'c' * 40}.pictures"]
    others = ["mine.index", f"{'a' * 40}.json", "notes"]
    for name in (*old, *others):
        (cache / name).write_text("")
        touch(cache / name)
    for name in (*old[:2], *others):
        touch(cache / name, 31 * 86400)
    open_index(write_set(content)[0])
    left = {path.name for path in cache.iterdir()}
    assert left.isdisjoint(old[:2])
    assert left.issuperset([old[2], *others])


def test_processes_that_start_at_once_make_one(content, write_set, cache, tmp_path, monkeypatch):
    file, _ = write_set(content)
    note, write_index = tmp_path / "made", index_cache.write_index
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(4)

    def counting(*args):
        with note.open("a") as opened:
            opened.write("once")
        write_index(*args)

    def run():
        barrier.wait()
        assert len(open_index(file).annotations(0, 0)) == 2

    monkeypatch.setattr(index_cache, "write_index", counting)
    processes = [context.Process(target=run) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert note.read_text() == "once"


def test_a_pickle_carries_no_annotations(content, write_set, cache):
    row = content["annotations"][2]
    content["annotations"] += [{**row, "id": number} for number in range(100, 5000)]
    dataset = CocoDataset(*write_set(content), train=True)
    assert len(pickle.dumps(dataset)) < 5000
    context = multiprocessing.get_context("spawn")
    (count,) = torch.utils.data.DataLoader(
        torch.utils.data.Subset(dataset, [0]),
        None,
        num_workers=1,
        multiprocessing_context=context,
        collate_fn=_count,
    )
    assert count == 4902


def _count(sample):
    return len(sample[1]["boxes"])


def test_making_it_is_logged(content, write_set, cache, caplog):
    file, _ = write_set(content)
    with caplog.at_level(logging.INFO):
        open_index(file)
    assert f"{file}: made its index in " in caplog.text
