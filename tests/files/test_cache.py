"""The cache of remote files: its limit, concurrent processes, and unusable folders."""

import logging
import multiprocessing
import os
import time

import pytest

from detlite.files import cache as module
from detlite.files.cache import FileCache

KEYS = [f"{number:040x}"[::-1] for number in range(40)]


def never():
    raise AssertionError("fetched again")


@pytest.fixture
def cache(tmp_path):
    return FileCache(tmp_path / "files", 10_000)


def size(cache):
    return sum(path.stat().st_size for path in cache._folder.rglob("??/*") if path.is_file())


def test_files_are_fetched_once(cache):
    with pytest.raises(AssertionError):
        cache.read(KEYS[0], never)  # errors are not cached
    for fetch in (lambda: b"abcdef", never):
        assert cache.read(KEYS[0], fetch) == b"abcdef"
    assert cache.forget(KEYS[0])
    assert not cache.forget(KEYS[0])
    assert cache.read(KEYS[0], lambda: b"new") == b"new"


def test_recently_used_files_stay(cache):
    now = time.time()
    for age, key in enumerate(KEYS[:10]):
        cache.read(key, lambda: bytes(1000))
        os.utime(cache._path(key), (now - 100 + age,) * 2)
    cache.read(KEYS[0], never)  # used again
    cache.read(KEYS[10], lambda: bytes(1000))
    assert size(cache) <= 10_000
    left = [key for key in KEYS[:11] if cache._path(key).exists()]
    assert left == [KEYS[0], *KEYS[3:11]]


@pytest.mark.parametrize("note", [None, "", "nonsense"])
def test_limit(cache, note):
    """Also if the total size in the note is unknown."""
    for number, key in enumerate(KEYS):
        if number == 12 and note is not None:
            (cache._folder / "size").write_text(note)
        cache.read(key, lambda: bytes(700))
        assert size(cache) <= 10_000
    assert size(cache) > 7_000
    assert len(cache.read("other", lambda: bytes(10_001))) == 10_001  # more than the limit
    assert not cache._path("other").exists()
    assert size(cache) > 7_000


@pytest.mark.parametrize("kind", ["no folder", "full"])
def test_without_space_nothing_is_cached_and_one_warning_logged(
    cache, kind, monkeypatch, caplog, tmp_path
):
    def full(*args, **options):
        raise OSError(28, "No space left on device")

    if kind == "no folder":
        (tmp_path / "files").write_text("")
    else:
        monkeypatch.setattr(module, "atomic_open", full)
    with caplog.at_level(logging.WARNING):
        for key in (KEYS[0], KEYS[0], KEYS[1]):
            assert cache.read(key, lambda: b"abc") == b"abc"
    (record,) = caplog.records
    assert "files are not cached" in record.getMessage()


def _read_all(cache, fetched, start):
    start.wait()
    for number, key in [*enumerate(KEYS)] * 2:

        def fetch(number=number):
            with fetched.get_lock():
                fetched.value += 1
            return bytes([number]) * 700

        assert cache.read(key, fetch) == bytes([number]) * 700


@pytest.mark.parametrize(("limit", "max_fetched"), [(100_000, 40), (10_000, 2 * 2 * 40)])
def test_processes_share_the_cache(tmp_path, limit, max_fetched):
    cache = FileCache(tmp_path / "files", limit)
    context = multiprocessing.get_context("fork")
    fetched, start = context.Value("i", 0), context.Barrier(2)
    processes = [context.Process(target=_read_all, args=(cache, fetched, start)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert 40 <= fetched.value <= max_fetched
    assert size(cache) <= limit
    assert not list((tmp_path / "files").rglob("*.tmp"))
