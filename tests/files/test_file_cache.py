"""The cache of remote files: its limit, concurrent processes, and damaged files."""

import logging
import multiprocessing
import os
import time

import pytest

from detlite.files import file_cache
from detlite.files.file_cache import FileCache

KEYS = [f"{number:040x}"[::-1] for number in range(40)]


def never():
    raise AssertionError("fetched again")


@pytest.fixture
def cache(tmp_path):
    return FileCache(tmp_path / "files", 10_000)


def size(cache):
    return sum(path.stat().st_size for path in cache._folder.rglob("??/*") if path.is_file())


def test_files_are_fetched_once(cache):
    assert cache.read(KEYS[0], lambda: b"abcdef") == b"abcdef"
    assert cache.read(KEYS[0], never) == b"abcdef"


def test_errors_are_not_cached(cache):
    with pytest.raises(AssertionError):
        cache.read(KEYS[0], never)
    assert cache.read(KEYS[0], lambda: b"x") == b"x"


def test_forget(cache):
    assert not cache.forget(KEYS[0])
    cache.read(KEYS[0], lambda: b"old")
    assert cache.forget(KEYS[0])
    assert cache.read(KEYS[0], lambda: b"new") == b"new"


def test_recently_used_files_stay(cache):
    now = time.time()
    for age, key in enumerate(KEYS[:9]):
        cache.read(key, lambda: bytes(1000))
        os.utime(cache._path(key), (now - 100 + age,) * 2)
    cache.read(KEYS[0], never)  # used again
    cache.read(KEYS[9], lambda: bytes(1000))
    assert size(cache) <= 10_000
    left = [key for key in KEYS[:10] if cache._path(key).exists()]
    assert left == [KEYS[0], *KEYS[3:10]]


def test_limit(cache):
    for key in KEYS:
        cache.read(key, lambda: bytes(700))
        assert size(cache) <= 10_000
    assert size(cache) > 7_000


def test_files_above_the_limit_are_not_cached(cache):
    cache.read(KEYS[0], lambda: b"small")
    assert len(cache.read(KEYS[1], lambda: bytes(10_000))) == 10_000
    assert not cache._path(KEYS[1]).exists()
    assert cache.read(KEYS[0], never) == b"small"


@pytest.mark.parametrize("note", ["", "nonsense", "-1000000"])
def test_unknown_total_size_is_computed(cache, note):
    for key in KEYS[:12]:
        cache.read(key, lambda: bytes(700))
    (cache._folder / "size").write_text(note)
    for key in KEYS[12:]:
        cache.read(key, lambda: bytes(700))
    assert size(cache) <= 10_000


@pytest.mark.parametrize("damage", [b"", b"x", b"x" * 100])
def test_damaged_files_are_fetched_again(cache, damage):
    cache.read(KEYS[0], lambda: b"abcdef")
    path = cache._path(KEYS[0])
    path.write_bytes(damage)
    assert cache.read(KEYS[0], lambda: b"abcdef") == b"abcdef"
    path.write_bytes(path.read_bytes()[:-1])
    assert cache.read(KEYS[0], lambda: b"abcdef") == b"abcdef"
    path.write_bytes(path.read_bytes() + b"g")
    assert cache.read(KEYS[0], lambda: b"abcdef") == b"abcdef"
    assert cache.read(KEYS[0], never) == b"abcdef"


def test_old_unfinished_files_are_deleted(cache):
    cache.read(KEYS[0], lambda: b"abcdef")
    for age, key in ((0, "new.tmp"), (7200, "old.tmp")):
        path = cache._path(KEYS[0]).parent / key
        path.write_bytes(bytes(5000))
        os.utime(path, (time.time() - age,) * 2)
    (cache._folder / "size").unlink()
    cache.read(KEYS[1], lambda: b"abcdef")
    assert [path.name for path in cache._folder.rglob("*.tmp")] == ["new.tmp"]


@pytest.mark.parametrize("kind", ["no folder", "full"])
def test_without_space_nothing_is_cached_and_one_warning_logged(
    cache, kind, monkeypatch, caplog, tmp_path
):
    if kind == "no folder":
        (tmp_path / "files").write_text("")
    else:

        def full(*args, **options):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(file_cache, "atomic_open", full)
    with caplog.at_level(logging.WARNING):
        for key in (KEYS[0], KEYS[0], KEYS[1]):
            assert cache.read(key, lambda: b"abc") == b"abc"
    (record,) = caplog.records
    assert "files are not cached" in record.getMessage()


def _read_all(cache, fetched, start):
    start.wait()
    for _ in range(3):
        for number, key in enumerate(KEYS):

            def fetch(number=number):
                with fetched.get_lock():
                    fetched.value += 1
                return bytes([number]) * 700

            assert cache.read(key, fetch) == bytes([number]) * 700


@pytest.mark.parametrize(("limit", "max_fetched"), [(100_000, 40), (10_000, 4 * 3 * 40)])
def test_processes_share_the_cache(tmp_path, limit, max_fetched):
    cache = FileCache(tmp_path / "files", limit)
    context = multiprocessing.get_context("fork")
    fetched, start = context.Value("i", 0), context.Barrier(4)
    processes = [context.Process(target=_read_all, args=(cache, fetched, start)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert 40 <= fetched.value <= max_fetched
    assert size(cache) <= limit
    assert not list((tmp_path / "files").rglob("*.tmp"))
