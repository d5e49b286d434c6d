"""Reading files at URLs: temporary faults of servers, and the messages of others."""

import shutil
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("aiohttp", reason="needs detlite[remote]")

from fsspec import config as fsspec_config

from detlite.config import ConfigError
from detlite.data.images.reading import read_image
from detlite.data.remote import filesystem
from detlite.data.remote.filesystem import copy_file, file_version, read
from detlite.data.remote.remote_path import RemotePath
from detlite.files import retry as retry_module
from detlite.files.errors import RemoteError

DATA = bytes(range(256)) * 400


@pytest.fixture(autouse=True)
def _file(tmp_path):
    (tmp_path / "file.bin").write_bytes(DATA)


@pytest.mark.parametrize(
    "faults",
    [[503, 503], [500], [429, 408], ["cut"], ["reset"], ["cut", 503, "reset", "cut"], ["slow"]],
)
def test_temporary_faults(web, waits, faults):
    web.faults["/file.bin"] = list(faults)
    assert read(f"{web.url}/file.bin") == DATA
    # The client itself retries if a kept connection was closed.
    retries = len([fault for fault in faults if fault not in ("slow", "reset")])
    assert retries <= len(waits) <= len(faults)
    assert all(0.25 * 2**n <= wait <= 0.5 * 2**n for n, wait in enumerate(waits))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (503, r"/file.bin: cannot be read after 5 attempts \(HTTP status 503\)"),
        ("cut", r"/file.bin: cannot be read after 5 attempts \(ClientPayloadError: .*not"),
        ("reset", r"/file.bin: cannot be read after 5 attempts \(ServerDisconnectedError"),
    ],
)
def test_number_of_attempts_is_limited(web, waits, fault, message):
    web.faults["/file.bin"] = [fault] * 100
    with pytest.raises(RemoteError, match=message):
        read(f"{web.url}/file.bin")
    assert web.asked["/file.bin"] == 5 or fault == "reset"
    assert len(waits) == 4


def test_permanent_errors_are_not_retried(web, waits):
    with pytest.raises(FileNotFoundError, match=r"/none.bin"):
        read(f"{web.url}/none.bin")
    with pytest.raises(FileNotFoundError, match=r"/none.bin"):
        file_version(f"{web.url}/none.bin")
    web.faults["/file.bin"] = [403]
    with pytest.raises(RemoteError, match=r"/file.bin\?\.\.\.: cannot be read \(HTTP status 403\)"):
        read(f"{web.url}/file.bin?signature=secret")
    assert web.asked["/file.bin"] == 1
    assert not waits


def test_silence_and_the_total_time_are_limited(web, waits, monkeypatch):
    monkeypatch.setattr(filesystem, "_SILENCE", 0.3)
    web.faults["/file.bin"] = ["stall"]
    assert read(f"{web.url}/file.bin") == DATA
    assert len(waits) == 1
    monkeypatch.setattr(retry_module, "_MAX_WAIT", -1.0)
    web.faults["/file.bin"] = [503]
    with pytest.raises(RemoteError, match=r"cannot be read \(HTTP status 503\)"):
        read(f"{web.url}/file.bin")


def test_settings_of_fsspec_are_used(web, monkeypatch):
    settings = {"headers": {"X-Key": "mine"}, "client_kwargs": {"raise_for_status": False}}
    monkeypatch.setitem(fsspec_config.conf, "http", settings)
    assert read(f"{web.url}/file.bin") == DATA
    assert web.keys["/file.bin"] == "mine"


def test_a_version_changes_with_the_file(web, tmp_path):
    before = file_version(f"{web.url}/file.bin")
    assert before.size == len(DATA)
    assert file_version(f"{web.url}/file.bin") == before
    (tmp_path / "file.bin").write_bytes(DATA[::-1])
    assert file_version(f"{web.url}/file.bin") != before
    web.versioned = False
    assert file_version(f"{web.url}/file.bin").version is None


@pytest.mark.parametrize("faults", [[], [503], ["cut", "reset"], ["slow"]])
def test_copy_a_file(web, waits, tmp_path, faults):
    web.faults["/file.bin"] = list(faults)
    assert copy_file(f"{web.url}/file.bin", tmp_path / "copy").size == len(DATA)
    assert (tmp_path / "copy").read_bytes() == DATA


def test_a_file_that_changes_meanwhile_is_copied_again(web, waits, tmp_path, monkeypatch):
    version_of = filesystem._file_version
    calls = []

    def changing(system, path):
        calls.append(path)
        if len(calls) == 2:
            (tmp_path / "file.bin").write_bytes(DATA[::-1])
        return version_of(system, path)

    monkeypatch.setattr(filesystem, "_file_version", changing)
    copy_file(f"{web.url}/file.bin", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == DATA[::-1]


def test_full_disk_is_not_retried(web, waits, tmp_path):
    with pytest.raises(OSError, match="No space left"):
        copy_file(f"{web.url}/file.bin", "/dev/full")
    assert not waits


def test_read_members_of_an_archive(web, waits, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("folder/one.bin", DATA)
    url = f"::{web.url}/a.zip"
    assert read(f"zip://folder/one.bin{url}") == DATA
    asked = web.asked["/a.zip"]
    assert read(f"zip://folder/one.bin{url}") == DATA
    assert web.asked["/a.zip"] - asked <= 2  # the table is read once
    assert file_version(f"zip://folder/one.bin{url}").version is not None
    with pytest.raises(FileNotFoundError):
        read(f"zip://folder/two.bin{url}")
    assert read(f"zip://folder/one.bin::{tmp_path}/a.zip") == DATA


def test_a_replaced_archive_is_opened_again(web, waits, tmp_path):
    data = DATA * 10  # more than the client caches
    for number, first in enumerate((b"", DATA)):
        with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
            for name, member in (("before", first), ("one", data), ("after", data)):
                archive.writestr(name, member)
        assert read(f"zip://one::{web.url}/b.zip") == data
        assert len(waits) == number


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_threads_share_an_archive(tmp_path, kind):
    """Members share the position in the file."""
    members = {f"all/{number}": bytes([number]) * 200_000 for number in range(8)}
    (tmp_path / "all").mkdir()
    for name, data in members.items():
        (tmp_path / name).write_bytes(data)
    shutil.make_archive(str(tmp_path / "a"), kind, tmp_path, "all")

    def is_complete(name):
        return read(f"{kind}://{name}::{tmp_path}/a.{kind}") == members[name]

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(is_complete, [*members] * 20))
    opened = filesystem._open_filesystem(f"{kind}://all/0::{tmp_path}/a.{kind}")[0]
    assert {*members} <= {*opened.dir_cache}  # complete before it is shared
    with pytest.raises(FileNotFoundError):
        read(f"{kind}://none::{tmp_path}/a.{kind}")
    assert filesystem._open_filesystem(f"{kind}://all/0::{tmp_path}/a.{kind}")[0] is opened


def test_unknown_protocols(monkeypatch):
    with pytest.raises(RemoteError, match=r"nix://a/b: fsspec does not know the protocol 'nix'"):
        read("nix://a/b")
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    missing = r"^gs://a/b\.png: the package .* is missing .*detlite\[remote\]"
    for read_url in (read, lambda url: read_image(RemotePath(url))):
        with pytest.raises(ConfigError, match=missing):
            read_url("gs://a/b.png")
