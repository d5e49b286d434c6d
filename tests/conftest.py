"""Fixtures of all tests: seeds, a tiny model, generated and real datasets, a browser."""

import gc
import os
import random
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from yacs.config import CfgNode

from tests.builders import leave_drawings_empty, tiny_config, write_coco_dataset

_ROOT = Path(__file__).parent.parent
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")

# The same examples in each run, without a time limit.
settings.register_profile("seeded", derandomize=True, deadline=None)
settings.load_profile("seeded")

# The other tests start processes by fork and send POSIX signals.
_ON_WINDOWS = ("config", "modeling", "ops", "structures", "test_setup.py", "test_workflows.py")
if sys.platform == "win32":
    _entries = [path.name for path in Path(__file__).parent.iterdir()]
    collect_ignore = [name for name in _entries if name not in _ON_WINDOWS]
elif sys.platform == "darwin":
    collect_ignore = ["fuzz"]  # measures memory by /proc


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude modules and collected tests from garbage collections, which would take 0.3 s each."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


@pytest.fixture(scope="session", autouse=True)
def default_signals() -> None:
    """Let processes that tests start react to signals, even if nohup made this one ignore them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # A handled signal has its default action in a new process, an ignored one stays ignored.
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)


@pytest.fixture(scope="session", autouse=True)
def temporary_cache_without_waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the indexes of datasets in a temporary folder, and wait for nothing.

    Torch would wait twice five seconds for a loader process that cannot end. Files are written
    without waiting for the disk, because no test cuts the power.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DETLITE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.5)
        patch.setattr("os.fsync", lambda descriptor: None)
        yield


# Without an accelerator, torch.manual_seed would format a stack trace for each type of accelerator.
_seed_torch = (
    torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed
)


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """Seed the random number generators, so that results do not depend on the order of tests."""
    random.seed(0)
    np.random.seed(0)
    _seed_torch(0)


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    """Each available device."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return request.param


@pytest.fixture(scope="session")
def repo_root() -> Path:
    """The folder of pyproject.toml; the test is skipped where an installed wheel is tested."""
    if not (_ROOT / "pyproject.toml").is_file():
        pytest.skip("needs a checkout")
    return _ROOT


@pytest.fixture
def free_port() -> Callable[[], int]:
    """`free_port()`: an unused local port."""

    def find() -> int:
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            return int(server.getsockname()[1])

    return find


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real datasets and recorded outputs; the test is skipped without it."""
    folder = _ROOT / os.environ.get("DETLITE_TEST_DATA", "../shared")
    if not folder.is_dir():
        pytest.skip(f"no folder {folder} (DETLITE_TEST_DATA)")
    return folder


@pytest.fixture(scope="session", name="tiny_config")
def tiny_config_fixture() -> Callable[..., CfgNode]:
    """Return the function `tiny_config(*opts)` of `tests.builders`."""
    return tiny_config


@pytest.fixture
def make_coco_dataset(tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
    """`make_coco_dataset(...)`: `write_coco_dataset` in a folder of the test."""
    return partial(write_coco_dataset, tmp_path)


@pytest.fixture(scope="session")
def shared_coco_dataset(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the annotation file and the images of a dataset, which tests must not change."""
    return write_coco_dataset(tmp_path_factory.mktemp("shared"))


@pytest.fixture
def without_drawings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the drawings at the end of a run empty, because they take as long as a tiny run."""
    leave_drawings_empty(monkeypatch)


# Not for the whole session, because playwright's event loop would disturb later tests.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A headless Chromium of playwright; the test is skipped if either is missing."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed", exc_type=ImportError
    )
    program = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(_BROWSERS)}")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()
