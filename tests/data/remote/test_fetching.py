"""Files at URLs: what faults of a server are survived, and what the others say."""

from __future__ import annotations

import io
import sys
import tarfile
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("aiohttp", reason="needs detlite[remote]")

from fsspec import config as fsspec_config

from detlite.config import ConfigError
from detlite.data.errors import RemoteError
from detlite.data.remote import download as download_module
from detlite.data.remote import fetching
from detlite.data.remote.filesystem import describe, download, read
from tests.data.servers import serving

DATA = bytes(range(256)) * 400


@pytest.fixture
def web(tmp_path):
    """A server of tmp_path / web, which holds `file.bin`."""
    folder = tmp_path / "web"
    folder.mkdir()
    (folder / "file.bin").write_bytes(DATA)
    with serving(folder) as server:
        yield server


@pytest.fixture
def waits(monkeypatch):
    """The waits between tries, which are not waited."""
    waited = []
    monkeypatch.setattr(download_module.time, "sleep", waited.append)
    return waited


def test_a_file_is_read(web):
    assert read(f"{web.url}/file.bin") == DATA
    assert read(f"{web.url}/file.bin", 100, 300) == DATA[100:300]


@pytest.mark.parametrize(
    "faults",
    [[503, 503], [500], [429, 408], ["cut"], ["reset"], ["cut", 503, "reset", "cut"], ["slow"]],
)
def test_faults_that_pass_are_survived(web, waits, faults):
    web.faults["/file.bin"] = list(faults)
    assert read(f"{web.url}/file.bin") == DATA
    # The client asks again by itself where a connection that it had kept is gone.
    tries = len([fault for fault in faults if fault not in ("slow", "reset")])
    assert tries <= len(waits) <= len(faults)
    assert all(0.25 * 2**n <= wait <= 0.5 * 2**n for n, wait in enumerate(waits))


def test_a_server_that_says_nothing_is_left(web, waits, monkeypatch):
    monkeypatch.setattr(fetching, "_SILENCE", 0.3)
    web.faults["/file.bin"] = ["stall"]
    assert read(f"{web.url}/file.bin") == DATA
    assert len(waits) == 1


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (503, r"/file.bin: cannot be read after 5 attempts \(HTTP status 503\)"),
        ("cut", r"/file.bin: cannot be read after 5 attempts \(ClientPayloadError: .*not"),
        ("reset", r"/file.bin: cannot be read after 5 attempts \(ServerDisconnectedError"),
    ],
)
def test_tries_are_bounded(web, waits, fault, message):
    web.faults["/file.bin"] = [fault] * 100
    with pytest.raises(RemoteError, match=message):
        read(f"{web.url}/file.bin")
    assert web.asked["/file.bin"] == 5 or fault == "reset"
    assert len(waits) == 4


def test_no_server(web, waits):
    url = web.url
    web.shutdown()
    web.server_close()
    with pytest.raises(
        RemoteError, match=r"after 5 attempts \(ClientConnectorError: Cannot connect"
    ):
        read(f"{url}/file.bin")


def test_patience_ends(web, waits, monkeypatch):
    monkeypatch.setattr(download_module, "_MAX_WAIT", -1.0)
    web.faults["/file.bin"] = [503]
    with pytest.raises(RemoteError, match=r"cannot be read \(HTTP status 503\)"):
        read(f"{web.url}/file.bin")


def test_what_is_missing_or_forbidden_is_asked_for_once(web, waits):
    with pytest.raises(FileNotFoundError, match=r"/none.bin"):
        read(f"{web.url}/none.bin")
    with pytest.raises(FileNotFoundError, match=r"/none.bin"):
        describe(f"{web.url}/none.bin")
    web.faults["/file.bin"] = [403]
    with pytest.raises(RemoteError, match=r"/file.bin: cannot be read \(HTTP status 403\)"):
        read(f"{web.url}/file.bin")
    assert web.asked["/file.bin"] == 1
    assert not waits


def test_a_server_without_ranges_is_an_error(web, waits):
    web.faults["/file.bin"] = ["whole"] * 5
    message = "OSError: gave 102400 bytes where 200 were asked for"
    with pytest.raises(RemoteError, match=message):
        read(f"{web.url}/file.bin", 100, 300)


def test_settings_of_fsspec_are_taken(web, monkeypatch):
    settings = {"headers": {"X-Key": "mine"}, "client_kwargs": {"raise_for_status": False}}
    monkeypatch.setitem(fsspec_config.conf, "http", settings)
    assert read(f"{web.url}/file.bin") == DATA
    assert web.keys["/file.bin"] == "mine"


def test_signatures_are_not_told(web, waits):
    with pytest.raises(FileNotFoundError) as missing:
        read(f"{web.url}/none.bin?signature=secret")
    web.faults["/file.bin"] = [403]
    with pytest.raises(RemoteError) as forbidden:
        read(f"{web.url}/file.bin?signature=secret")
    for error in (missing, forbidden):
        assert "secret" not in str(error.value)


def test_a_description_changes_with_the_file(web, tmp_path):
    before = describe(f"{web.url}/file.bin")
    assert before.size == len(DATA)
    assert describe(f"{web.url}/file.bin") == before
    (tmp_path / "web/file.bin").write_bytes(DATA[::-1])
    assert describe(f"{web.url}/file.bin") != before
    web.versioned = False
    assert describe(f"{web.url}/file.bin").version is None


@pytest.mark.parametrize("faults", [[], [503], ["cut", "reset"], ["slow"]])
def test_a_file_is_copied(web, waits, tmp_path, faults):
    web.faults["/file.bin"] = list(faults)
    assert download(f"{web.url}/file.bin", tmp_path / "copy").size == len(DATA)
    assert (tmp_path / "copy").read_bytes() == DATA


def test_a_file_that_changes_while_it_is_copied_is_copied_again(web, waits, tmp_path, monkeypatch):
    described = fetching._described
    looks = []

    def changing(system, path):
        looks.append(path)
        if len(looks) == 2:
            (tmp_path / "web/file.bin").write_bytes(DATA[::-1])
        return described(system, path)

    monkeypatch.setattr(fetching, "_described", changing)
    download(f"{web.url}/file.bin", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == DATA[::-1]


def test_a_full_disk_is_no_fault_of_the_server(web, waits, tmp_path):
    with pytest.raises(OSError, match="No space left"):
        download(f"{web.url}/file.bin", "/dev/full")
    assert not waits


def test_members_of_an_archive(web, waits, tmp_path):
    with zipfile.ZipFile(tmp_path / "web/a.zip", "w") as archive:
        archive.writestr("folder/one.bin", DATA)
    url = f"::{web.url}/a.zip"
    assert read(f"zip://folder/one.bin{url}") == DATA
    asked = web.asked["/a.zip"]
    assert read(f"zip://folder/one.bin{url}", 5, 9) == DATA[5:9]
    assert web.asked["/a.zip"] - asked <= 2  # its table is read once
    assert describe(f"zip://folder/one.bin{url}").version is not None
    with pytest.raises(FileNotFoundError):
        read(f"zip://folder/two.bin{url}")
    assert read(f"zip://folder/one.bin::{tmp_path}/web/a.zip") == DATA


def test_an_archive_that_was_replaced_is_opened_again(web, waits, tmp_path):
    data = DATA * 10  # more than is kept of what was asked for
    for number, first in enumerate((b"", DATA)):
        with zipfile.ZipFile(tmp_path / "web/b.zip", "w") as archive:
            for name, member in (("before", first), ("one", data), ("after", data)):
                archive.writestr(name, member)
        assert read(f"zip://one::{web.url}/b.zip") == data
        assert len(waits) == number


def test_threads_may_read_one_archive(web, tmp_path):
    with zipfile.ZipFile(tmp_path / "web/a.zip", "w") as archive:
        for number in range(20):
            archive.writestr(f"{number}", bytes([number]) * 50_000)
    found = {}

    def get(number):
        found[number] = read(f"zip://{number}::{web.url}/a.zip")

    threads = [threading.Thread(target=get, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: bytes([number]) * 50_000 for number in range(20)}


def test_threads_may_read_one_tar_file(tmp_path):
    """Its members share the position of one file."""
    members = {f"{number}": bytes([number]) * 200_000 for number in range(8)}
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))

    def is_whole(name):
        return read(f"tar://{name}::{tmp_path}/a.tar") == members[name]

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(is_whole, [*members] * 20))


def test_the_directory_of_an_archive_is_whole_before_threads_share_it(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("folder/one", DATA)
    system = fetching._opened(f"zip://folder/one::{tmp_path}/a.zip")[0]
    assert set(system.dir_cache) == {"folder", "folder/one"}


def test_a_failure_leaves_other_archives_open(tmp_path, waits, monkeypatch):
    for name in "ab":
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as archive:
            archive.writestr("one", DATA)

    def system(name):
        return fetching._opened(f"zip://one::{tmp_path}/{name}.zip")[0]

    def fail(member):
        with pytest.raises(FileNotFoundError):
            read(f"zip://{member}::{tmp_path}/a.zip")

    first, other = system("a"), system("b")
    fail("none")
    assert system("a") is first
    monkeypatch.setattr(fetching, "_BELIEVED", 0.0)
    fail("none")  # it may have been added since
    assert system("a") is not first
    assert system("b") is other


def test_unknown_protocols(monkeypatch):
    with pytest.raises(ConfigError, match=r"nix://a/b: fsspec knows no such protocol"):
        read("nix://a/b")
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(ConfigError, match=r"gs://a/b: a package is missing .*detlite\[remote\]"):
        read("gs://a/b")
