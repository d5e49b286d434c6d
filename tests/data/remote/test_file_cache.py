"""A bounded folder of copies: what stays, what goes, and what faults cost."""

from __future__ import annotations

import logging
import multiprocessing
import os
import time

import pytest

from detlite.data.remote import file_cache
from detlite.data.remote.file_cache import FileCache

NAMES = [f"{number:040x}"[::-1] for number in range(40)]


def never():
    raise AssertionError("was fetched again")


@pytest.fixture
def cache(tmp_path):
    return FileCache(tmp_path / "copies", 10_000)


def size(cache):
    return sum(path.stat().st_size for path in cache._folder.rglob("??/*") if path.is_file())


def test_a_copy_is_fetched_once(cache):
    assert cache.read(NAMES[0], lambda: b"abcdef") == b"abcdef"
    assert cache.read(NAMES[0], never) == b"abcdef"
    assert cache.read(NAMES[0], never, 2, 4) == b"cd"
    assert cache.read(NAMES[0], never, 4) == b"ef"
    assert cache.read(NAMES[1], lambda: b"abcdef", 2, 4) == b"cd"
    assert cache.read(NAMES[1], never) == b"abcdef"


def test_what_fails_is_not_kept(cache):
    with pytest.raises(AssertionError):
        cache.read(NAMES[0], never)
    assert cache.read(NAMES[0], lambda: b"x") == b"x"


def test_a_copy_can_be_dropped(cache):
    assert not cache.forget(NAMES[0])
    cache.read(NAMES[0], lambda: b"old")
    assert cache.forget(NAMES[0])
    assert cache.read(NAMES[0], lambda: b"new") == b"new"


def test_those_used_last_stay(cache):
    now = time.time()
    for place, name in enumerate(NAMES[:9]):
        cache.read(name, lambda: bytes(1000))
        os.utime(cache._path(name), (now - 100 + place,) * 2)
    cache.read(NAMES[0], never)  # in use again
    cache.read(NAMES[9], lambda: bytes(1000))
    assert size(cache) <= 10_000
    left = [name for name in NAMES[:10] if cache._path(name).exists()]
    assert left == [NAMES[0], *NAMES[3:10]]


def test_the_bound_holds(cache):
    for name in NAMES:
        cache.read(name, lambda: bytes(700))
        assert size(cache) <= 10_000
    assert size(cache) > 7_000


def test_what_is_larger_than_the_bound_is_not_kept(cache):
    cache.read(NAMES[0], lambda: b"small")
    assert len(cache.read(NAMES[1], lambda: bytes(10_000))) == 10_000
    assert not cache._path(NAMES[1]).exists()
    assert cache.read(NAMES[0], never) == b"small"


@pytest.mark.parametrize("note", ["", "nonsense", "-1000000"])
def test_the_size_is_counted_anew_where_it_is_not_known(cache, note):
    for name in NAMES[:12]:
        cache.read(name, lambda: bytes(700))
    (cache._folder / "size").write_text(note)
    for name in NAMES[12:]:
        cache.read(name, lambda: bytes(700))
    assert size(cache) <= 10_000


@pytest.mark.parametrize("damage", [b"", b"x", b"x" * 100])
def test_damaged_copies_are_fetched_again(cache, damage):
    cache.read(NAMES[0], lambda: b"abcdef")
    path = cache._path(NAMES[0])
    path.write_bytes(damage)
    assert cache.read(NAMES[0], lambda: b"abcdef") == b"abcdef"
    path.write_bytes(path.read_bytes()[:-1])
    assert cache.read(NAMES[0], lambda: b"abcdef") == b"abcdef"
    path.write_bytes(path.read_bytes() + b"g")
    assert cache.read(NAMES[0], lambda: b"abcdef") == b"abcdef"
    assert cache.read(NAMES[0], never) == b"abcdef"


def test_unfinished_copies_are_dropped_later(cache):
    cache.read(NAMES[0], lambda: b"abcdef")
    for age, name in ((0, "new.tmp"), (7200, "old.tmp")):
        path = cache._path(NAMES[0]).parent / name
        path.write_bytes(bytes(5000))
        os.utime(path, (time.time() - age,) * 2)
    (cache._folder / "size").unlink()
    cache.read(NAMES[1], lambda: b"abcdef")
    assert [path.name for path in cache._folder.rglob("*.tmp")] == ["new.tmp"]


@pytest.mark.parametrize("kind", ["no folder", "full"])
def test_without_room_all_is_fetched_and_that_is_said_once(
    cache, kind, monkeypatch, caplog, tmp_path
):
    if kind == "no folder":
        (tmp_path / "copies").write_text("")
    else:

        def full(*args):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(file_cache, "appearing", full)
    with caplog.at_level(logging.WARNING):
        for name in (NAMES[0], NAMES[0], NAMES[1]):
            assert cache.read(name, lambda: b"abc") == b"abc"
    (record,) = caplog.records
    assert "no copies are kept, all is fetched each time" in record.getMessage()


def _read_all(cache, fetched, start):
    start.wait()
    for _ in range(3):
        for number, name in enumerate(NAMES):

            def fetch(number=number):
                with fetched.get_lock():
                    fetched.value += 1
                return bytes([number]) * 700

            assert cache.read(name, fetch) == bytes([number]) * 700


@pytest.mark.parametrize(("limit", "most"), [(100_000, 40), (10_000, 4 * 3 * 40)])
def test_processes_share_it(tmp_path, limit, most):
    cache = FileCache(tmp_path / "copies", limit)
    context = multiprocessing.get_context("fork")
    fetched, start = context.Value("i", 0), context.Barrier(4)
    processes = [context.Process(target=_read_all, args=(cache, fetched, start)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert 40 <= fetched.value <= most
    assert size(cache) <= limit
    assert not list((tmp_path / "copies").rglob("*.tmp"))
