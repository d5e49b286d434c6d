"""A dataset with labels for few of its images."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import detlite
from tests.builders import write_coco_dataset, write_shapes_config

Train = Callable[..., detlite.Result]
FOUR_STEPS = {"SOLVER.MAX_ITER": 4}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Write a folder with train.json (images 1 to 4), val.json (5, 6) and the folder `more`.

    `more` contains copies of images 1 and 5, the new images 7 to 10, and a damaged file.
    """
    annotations, images = write_coco_dataset(tmp_path, "all", images=10)
    content, folder = json.loads(annotations.read_text()), tmp_path / "photos"
    shutil.copytree(images, folder / "images")
    for name, ids in (("train", (1, 2, 3, 4)), ("val", (5, 6))):
        part = {
            key: [row for row in content[key] if row.get("image_id", row["id"]) in ids]
            for key in ("images", "annotations")
        }
        (folder / f"{name}.json").write_text(json.dumps(content | part))
    (folder / "more").mkdir()
    for number in (1, 5, 7, 8, 9, 10):
        shutil.copy(images / f"{number}.png", folder / "more" / f"copy_{number}.png")
    (folder / "more" / "damaged.png").write_bytes(b"no image")
    return folder


@pytest.fixture
def train(photos: Path, without_drawings: None) -> Train:
    """Return a function that trains a tiny model on `photos`, by the arguments of `train`.

    The overrides include the length of the run.
    """
    config = write_shapes_config(photos / "config.yaml", photos)
    settings = {
        "MODEL.ROI_BOX_HEAD.NUM_CLASSES": 3, "SOLVER.IMS_PER_BATCH": 4, "TEST.REPORT": False,
        "SOLVER.CHECKPOINT_PERIOD": 1, "TEST.SCORE_THRESHOLD": 0.345, "TEST.OPTIMIZE": False,
    }  # fmt: skip

    def run(
        output: str, overrides: Mapping[str, Any] = FOUR_STEPS, **arguments: Any
    ) -> detlite.Result:
        pairs = {
            name: (photos / f"{split}.json", photos / "images")
            for name, split in (("data", "train"), ("test_data", "val"))
        }
        arguments = pairs | {"unlabeled": photos / "more"} | arguments
        return detlite.train(
            config, output_dir=photos / output, overrides=settings | dict(overrides), **arguments
        )

    return run
