"""Fixtures of all tests: seeds, a tiny model, generated and real datasets, a browser."""

import gc
import json
import os
import random
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from PIL import Image
from yacs.config import CfgNode

from detlite.config import load_config

_ROOT = Path(__file__).parent.parent
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")

# The same examples in each run, without a time limit.
settings.register_profile("seeded", derandomize=True, deadline=None)
settings.load_profile("seeded")

# A Mask R-CNN with a ResNet-18-FPN of a quarter of the usual width.
_TINY: dict[str, Any] = {
    "MODEL.DEVICE": "cpu",
    "MODEL.MASK_ON": True,
    "MODEL.BACKBONE.CONV_BODY": "R-18-FPN",
    "MODEL.BACKBONE.FREEZE_CONV_BODY_AT": 0,
    "MODEL.RESNETS.NORM": "GN",
    "MODEL.RESNETS.STEM_OUT_CHANNELS": 16,
    "MODEL.RESNETS.RES2_OUT_CHANNELS": 16,
    "MODEL.GROUP_NORM.NUM_GROUPS": 4,
    "MODEL.RPN.ANCHOR_SIZES": (8, 16, 32, 64, 128),
    "MODEL.RPN.STRADDLE_THRESH": -1,
    "MODEL.RPN.PRE_NMS_TOP_N_TRAIN": 100,
    "MODEL.RPN.PRE_NMS_TOP_N_TEST": 100,
    "MODEL.RPN.FPN_POST_NMS_TOP_N_TRAIN": 50,
    "MODEL.RPN.FPN_POST_NMS_TOP_N_TEST": 50,
    "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE": 32,
    "MODEL.ROI_HEADS.DETECTIONS_PER_IMG": 20,
    "MODEL.ROI_BOX_HEAD.NUM_CLASSES": 4,
    "INPUT.TO_BGR255": False,
    "INPUT.PIXEL_MEAN": [0.485, 0.456, 0.406],
    "INPUT.PIXEL_STD": [0.229, 0.224, 0.225],
    "TEST.REPORT": False,
}
_TINY_FPN: dict[str, Any] = {
    "MODEL.RESNETS.BACKBONE_OUT_CHANNELS": 16,
    "MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR": "FPN2MLPFeatureExtractor",
    "MODEL.ROI_BOX_HEAD.PREDICTOR": "FPNPredictor",
    "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION": 7,
    "MODEL.ROI_BOX_HEAD.POOLER_SAMPLING_RATIO": 2,
    "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM": 32,
    "MODEL.ROI_MASK_HEAD.FEATURE_EXTRACTOR": "MaskRCNNFPNFeatureExtractor",
    "MODEL.ROI_MASK_HEAD.SHARE_BOX_FEATURE_EXTRACTOR": False,
    "MODEL.ROI_MASK_HEAD.POOLER_SAMPLING_RATIO": 2,
    "MODEL.ROI_MASK_HEAD.CONV_LAYERS": (16,),
    "MODEL.ROI_MASK_HEAD.RESOLUTION": 28,
}


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
def short_shutdowns() -> Iterator[None]:
    """Let torch wait shortly, not twice five seconds, for a loader process that cannot end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.5)
        yield


@pytest.fixture(scope="session", autouse=True)
def temporary_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the indexes of datasets in a temporary folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DETLITE_CACHE", str(tmp_path_factory.mktemp("cache")))
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
    """The folder of pyproject.toml."""
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


@pytest.fixture(scope="session")
def tiny_config() -> Callable[..., CfgNode]:
    """`tiny_config(*opts)`: the config of a tiny Mask R-CNN with FPN, or with C4 if `c4=True`."""

    def load(*opts: Any, c4: bool = False) -> CfgNode:
        settings = _TINY | ({"MODEL.BACKBONE.CONV_BODY": "R-18-C4"} if c4 else _TINY_FPN)
        return load_config(None, [item for pair in settings.items() for item in pair] + list(opts))

    return load


def write_coco_dataset(
    root: Path,
    name: str = "set",
    images: int = 6,
    size: tuple[int, int] = (96, 128),
    objects: int = 3,
    sides: tuple[float, float] = (16, 40),
    ratio: float = 1.0,
    categories: Sequence[str] = ("cat", "dog"),
    masks: bool = True,
    keypoints: Sequence[str] = (),
    gray: bool = False,
) -> tuple[Path, Path]:
    """Write images of bright rectangles and their COCO annotations.

    Args:
        root: where to write it.
        name: folder of the dataset.
        images: number of images.
        size: (height, width) of an image.
        objects: number of objects per image.
        sides: (minimum, maximum) of an object's side.
        ratio: height / width of an object.
        categories: names of the categories.
        masks: write polygons.
        keypoints: names of keypoints, all at an object's center.
        gray: write images of one channel.

    Returns:
        The annotation file and the folder of images.
    """
    rng = np.random.default_rng(0)
    folder = root / name
    (folder / "images").mkdir(parents=True)
    names = {"keypoints": list(keypoints)} if keypoints else {}
    content: dict[str, Any] = {
        "images": [],
        "annotations": [],
        "categories": [
            {"id": number, "name": category, **names}
            for number, category in enumerate(categories, start=1)
        ],
    }
    height, width = size
    for image_id in range(1, images + 1):
        file = f"{image_id}.png"
        pixels = rng.integers(0, 100, (height, width) if gray else (height, width, 3), np.uint8)
        content["images"].append(
            {"id": image_id, "file_name": file, "height": height, "width": width}
        )
        for _ in range(objects):
            side = rng.uniform(*sides)
            w, h = side / ratio**0.5, side * ratio**0.5
            x, y = rng.uniform(0, width - w), rng.uniform(0, height - h)
            pixels[int(y) : int(y + h), int(x) : int(x + w)] += 120
            annotation = {
                "id": len(content["annotations"]) + 1,
                "image_id": image_id,
                "category_id": int(rng.integers(len(categories))) + 1,
                "bbox": [x, y, w, h],
            }
            if masks:
                annotation["segmentation"] = [[x, y, x + w, y, x + w, y + h, x, y + h]]
            if keypoints:
                annotation["keypoints"] = [x + w / 2, y + h / 2, 2] * len(keypoints)
            content["annotations"].append(annotation)
        Image.fromarray(pixels).save(folder / "images" / file)
    (folder / "annotations.json").write_text(json.dumps(content))
    return folder / "annotations.json", folder / "images"


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
    for name in ("plot_metrics", "draw_sheet"):
        path = f"detlite.apps.drawing.run_drawings.{name}"
        monkeypatch.setattr(path, lambda *arguments: arguments[-1].touch())


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
