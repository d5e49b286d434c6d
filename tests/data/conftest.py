"""Fixtures that write small datasets in COCO's format to tmp_path."""

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from detlite.config import load_config
from detlite.data.datasets.coco import CocoDataset
from detlite.data.datasets.options import DatasetOptions
from detlite.files.cache import VARIABLE

SMALL_SET: dict[str, Any] = {
    # Sparse ids, not sorted.
    "categories": [{"id": 7, "name": "cat"}, {"id": 3, "name": "dog"}],
    "images": [
        {"id": 10, "file_name": "a.png", "height": 30, "width": 40},
        {"id": 11, "file_name": "b.png", "height": 40, "width": 20},
        {"id": 12, "file_name": "empty.png", "height": 16, "width": 16},
        {"id": 13, "file_name": "crowd.png", "height": 16, "width": 24},
    ],
    "annotations": [
        {"id": 1, "image_id": 10, "category_id": 7, "bbox": [4, 6, 10, 8], "iscrowd": 0,
         "area": 80, "segmentation": [[4, 6, 14, 6, 14, 14, 4, 14]]},
        {"id": 2, "image_id": 11, "category_id": 3, "bbox": [0, 0, 20, 40],
         "segmentation": {"size": [40, 20], "counts": [0, 400, 400]}},
        {"id": 3, "image_id": 10, "category_id": 3, "bbox": [20, 10, 10, 10],
         "segmentation": [[20, 10, 30, 10, 30, 20, 20, 20]]},
        {"id": 4, "image_id": 13, "category_id": 3, "bbox": [0, 0, 24, 16], "iscrowd": 1,
         "segmentation": {"size": [16, 24], "counts": [0, 384]}},
    ],
}  # fmt: skip

WriteSet = Callable[..., tuple[Path, Path]]


@pytest.fixture
def content() -> dict[str, Any]:
    """Return the content of a valid annotation file of four images, which a test may change."""
    return copy.deepcopy(SMALL_SET)


@pytest.fixture
def write_set(tmp_path: Path) -> WriteSet:
    """`write_set(content, name)`: write a dataset; return (annotation file, image folder)."""

    def write(content: dict[str, Any], name: str = "small") -> tuple[Path, Path]:
        folder = tmp_path / name
        (folder / "images").mkdir(parents=True)
        rng = np.random.default_rng(0)
        for row in content.get("images", []):
            pixels = rng.integers(0, 256, (row["height"], row["width"], 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "images" / row["file_name"])
        (folder / "annotations.json").write_text(json.dumps(content))
        return folder / "annotations.json", folder / "images"

    return write


@pytest.fixture
def open_set(write_set: WriteSet) -> Callable[..., CocoDataset]:
    """`open_set(content, name, train=True)`: write a dataset, and open it with DatasetOptions."""

    def open_written(content: dict[str, Any], name: str = "small", **options: Any) -> CocoDataset:
        return CocoDataset(*write_set(content, name), DatasetOptions(**options))

    return open_written


@pytest.fixture
def small_cfg(tmp_path: Path) -> Callable[..., Any]:
    """`small_cfg(*opts)`: load a config for the datasets in tmp_path."""

    def load(*opts: Any) -> Any:
        entries = [
            {"name": name, "annotations": f"{name}/annotations.json", "images": f"{name}/images"}
            for name in ("small", "other")
        ]
        defaults = [
            "DATASETS.ROOT", str(tmp_path), "DATASETS.CATALOG", entries, "DATASETS.TRAIN",
            ("small",), "MODEL.MASK_ON", True, "MODEL.DEVICE", "cpu", "DATALOADER.NUM_WORKERS", 0,
            "INPUT.MIN_SIZE_TRAIN", (24, 32), "INPUT.MAX_SIZE_TRAIN", 64, "INPUT.MIN_SIZE_TEST",
            20, "SOLVER.IMS_PER_BATCH", 2, "TEST.IMS_PER_BATCH", 2, "INPUT.BRIGHTNESS", 0.5,
            "MODEL.ROI_BOX_HEAD.NUM_CLASSES", 3,
        ]  # fmt: skip
        return load_config(None, [*defaults, *opts])

    return load


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set and return an empty cache folder."""
    folder = tmp_path / "cache"
    monkeypatch.setenv(VARIABLE, str(folder))
    return folder


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trust the times of new files, as if they had been written long ago."""
    monkeypatch.setattr("detlite.files.cache._TIME_STEP", 0.0)


@pytest.fixture
def real_data() -> Path:
    """Return the folder of real datasets; skip the test if it does not exist."""
    folder = Path(os.environ.get("DETLITE_TEST_DATA", "../shared")) / "data"
    if not folder.is_dir():
        pytest.skip(f"no datasets in {folder} (DETLITE_TEST_DATA)")
    return folder
