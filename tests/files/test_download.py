"""Downloads over HTTP from a local server with all kinds of faults."""

import errno
import hashlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from urllib.request import Request

import pytest

from detlite.files import download as module
from detlite.files.download import download, fetch
from detlite.files.errors import RemoteError
from detlite.files.retry import without_secrets
from tests.data.servers import serving

CONTENT = bytes(range(256)) * 40_000  # 10 MB
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def at_once(monkeypatch):
    """Retry without waiting."""
    monkeypatch.setattr("detlite.files.retry._FIRST_WAIT", 0.0)


@pytest.fixture
def server(tmp_path_factory, at_once):
    """Serve CONTENT as w.pth."""
    folder = tmp_path_factory.mktemp("web")
    (folder / "w.pth").write_bytes(CONTENT)
    with serving(folder) as running:
        yield running


def cut(server, *sizes):
    """Close the next connections after these numbers of bytes."""
    server.faults["/w.pth"] = [("cut", size) for size in sizes]


def files_in(folder):
    return {file.name for file in folder.iterdir() if file.suffix != ".lock"}


def test_files_are_verified_and_downloaded_once(server, tmp_path):
    file = tmp_path / "some" / "folder" / "weights.pth"
    message = rf"w\.pth: the SHA-256 of the content starts with {SHA256[:8]}, expected 01234567\. "
    with pytest.raises(RemoteError, match=message):
        download(f"{server.url}/w.pth", file, "01234567")
    assert files_in(file.parent) == set()
    for _ in range(2):
        download(f"{server.url}/w.pth", file, SHA256)
        assert file.read_bytes() == CONTENT
    file.write_bytes(b"put here by somebody else")
    download(f"{server.url}/w.pth", file)
    with pytest.raises(RemoteError, match=r"\.pth \(from .*starts with .*delete it if it exists"):
        download(f"{server.url}/w.pth", file, SHA256[:9])
    assert server.ranges == [None, None]
    assert files_in(file.parent) == {"weights.pth"}


def test_download_resumes_after_broken_connections(server, tmp_path):
    cut(server, 3_000_000, 0, 0, 0, 1_000_000, 0, 0, 0, 0)
    message = r"after 5 attempts \(.*ended after 0 of 6240000 bytes"
    with pytest.raises(RemoteError, match=message):
        download(f"{server.url}/w.pth", tmp_path / "w.pth", SHA256[:8])
    assert not (tmp_path / "w.pth").exists()
    download(f"{server.url}/w.pth", tmp_path / "w.pth", SHA256[:8])
    assert server.ranges == [None, *["bytes=3000000-"] * 4, *["bytes=4000000-"] * 5]
    assert (tmp_path / "w.pth").read_bytes() == CONTENT


@pytest.mark.parametrize("change", ["new version", "no ranges", "weak version", "shorter"])
def test_download_restarts_if_it_cannot_resume(change, server, tmp_path):
    server.weak = change == "weak version"
    cut(server, 9_000_000, 0, 0, 0, 0)
    with pytest.raises(RemoteError):
        download(f"{server.url}/w.pth", tmp_path / "w.pth")
    content = {"new version": CONTENT[::-1], "shorter": CONTENT[:1000]}.get(change, CONTENT)
    (server.folder / "w.pth").write_bytes(content)
    server.faults["/w.pth"] = ["whole"] if change == "no ranges" else []
    if change == "shorter":  # and the version is equal, so that the server answers 416
        etag = hashlib.md5(content).hexdigest()
        (tmp_path / "w.pth.part.version").write_text(f'"{etag}"')
    download(f"{server.url}/w.pth", tmp_path / "w.pth")
    assert (tmp_path / "w.pth").read_bytes() == content
    assert files_in(tmp_path) == {"w.pth"}


def test_a_link_in_place_of_the_unfinished_file_is_not_followed(server, tmp_path):
    (tmp_path / "other").write_text("file of another user")
    (tmp_path / "w.pth.part").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="is a symbolic link"):
        download(f"{server.url}/w.pth", tmp_path / "w.pth")
    assert (tmp_path / "other").read_text() == "file of another user"


@pytest.mark.parametrize(
    ("protocol", "target"), [("https", "http"), ("http", "ftp"), ("http", "file")]
)
def test_redirects_to_less_protected_urls_are_refused(protocol, target):
    request = Request(f"{protocol}://user:secret@host/w.pth?token=1")
    redirect = partial(module._Redirects().redirect_request, request, None, 302, "Found", {})
    assert redirect("https://other/w.pth").full_url == "https://other/w.pth"
    message = rf"^{protocol}://\.\.\.@host/w\.pth\?\.\.\.: the server redirects to {target}://other"
    with pytest.raises(RemoteError, match=message):
        redirect(f"{target}://other/w.pth")


def test_credentials_are_not_in_messages(server, tmp_path):
    url = server.url.replace("://", "://me:pass-word@") + "/w.pth?key=secret"
    with pytest.raises(RemoteError, match="user name or password is not supported") as error:
        download(url, tmp_path / "w.pth")
    assert not any(word in str(error.value) for word in ("pass-word", "secret"))
    assert without_secrets("s3://key:secret@b/c@d") == "s3://...@b/c@d"


@pytest.mark.usefixtures("at_once")
def test_unreachable_servers(tmp_path, free_port):
    message = r"/w\.pth: cannot be read after 5 attempts \(.*refused.*put the file at .*/w\.pth"
    with pytest.raises(RemoteError, match=message):
        download(f"http://127.0.0.1:{free_port()}/w.pth", tmp_path / "w.pth")
    with pytest.raises(RemoteError, match=r"/w\.pth: cannot be read \(\[Errno"):
        download("http://host.invalid/w.pth", tmp_path / "w.pth")


def test_full_disk_keeps_the_received_part(server, tmp_path, monkeypatch):
    def full(response, content):
        content.write(response.read(2_000_000))
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "_copy", full)
        with pytest.raises(OSError, match="No space left on device"):
            download(f"{server.url}/w.pth", tmp_path / "w.pth")
    download(f"{server.url}/w.pth", tmp_path / "w.pth")
    assert server.ranges == [None, "bytes=2000000-"]
    assert (tmp_path / "w.pth").read_bytes() == CONTENT


def test_concurrent_calls_download_once(server, tmp_path):
    with ThreadPoolExecutor(8) as pool:  # the lock belongs to an open file, not to a process
        list(pool.map(lambda _: download(f"{server.url}/w.pth", tmp_path / "w.pth"), range(8)))
    assert server.ranges == [None]


def test_fetch_quotes_the_url(server):
    (server.folder / "some image ä.jpg").write_bytes(b"abc")
    assert fetch(f"{server.url}/some image ä.jpg?x=1%20") == b"abc"
    assert server.paths == ["/some%20image%20%C3%A4.jpg?x=1%20"]


@pytest.mark.parametrize(
    ("faults", "requests", "message"),
    [
        ([429, ("cut", 1000)], 3, ""),
        ([404], 1, r" \(HTTP status 404\)"),
        ([503, 502, 500], 3, r" after 3 attempts \(HTTP status 500\)"),
        ([("cut", 7), ("cut", 8), ("cut", 9)], 3, r" after 3 .*ended after 9 of 10240000 bytes\)"),
    ],
)
def test_fetch_retries_temporary_faults(server, faults, requests, message):
    server.faults["/w.pth"] = faults
    if message:
        with pytest.raises(RemoteError, match=rf"w.pth\?\.\.\.: cannot be read{message}$"):
            fetch(f"{server.url}/w.pth?key=secret")
    else:
        assert fetch(f"{server.url}/w.pth") == CONTENT
    assert len(server.paths) == requests


def test_fetch_limits_size_and_time(server):
    with pytest.raises(RemoteError, match=r"/w.pth\?\.\.\.: the file is larger than 1000 bytes"):
        fetch(f"{server.url}/w.pth?key=secret", max_bytes=1000)
    server.faults["/w.pth"] = ["drip"]
    with pytest.raises(RemoteError, match=r"the download took more than 0.2 s"):
        fetch(f"{server.url}/w.pth", max_seconds=0.2)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:1/a.jpg", "https://", "http://a:b/c", "http://example..com/a", "http://[a"],
)
def test_invalid_urls(url):
    with pytest.raises(RemoteError, match=r": cannot be read.* \(.+\)$"):
        fetch(url)
