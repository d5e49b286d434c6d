"""Common mistakes: commands print the messages that docs/checking_data.md lists, and others."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from detlite.apps.cli.main import main
from detlite.config import load_config
from detlite.modeling import build_model
from tests.builders import tiny_config

pytestmark = pytest.mark.usefixtures("without_drawings")

PAGE = Path(__file__).parents[1] / "docs" / "checking_data.md"
ROWS = {
    title: (message, result)
    for title, message, result in re.findall(
        r"^\| (.+?) \| `` (.+) `` \| (.+?) \|$", PAGE.read_text(), re.M
    )
}
# Messages that are clear without the page.
ROWS |= {
    "byte-order mark": ("training on cells (6 images)…", "reads it"),
    "UTF-16": ("training on cells (6 images)…", "reads it"),
    "a folder of images as annotation file": (
        "error: dataset cells: …images is a folder, not an annotation file. To convert a folder, "
        "use `detlite init --data`", "stops",
    ),
    "a LabelMe file": (
        "error: …: not in COCO format: 'images' is missing; it contains LabelMe labels: `detlite "
        "init --data FOLDER --coco FILE` converts it to COCO json", "stops",
    ),
    "a polygon without the list of polygons": (
        "polygons … not in a list: … They are read as [[x1, y1, x2, ...], ...].",
        "reads it",
    ),
    "a GPU that does not exist": (
        "error: MODEL.DEVICE is 'cuda:7', which torch cannot use here: use auto or cpu, or install "
        "a torch that is built for this device", "stops",
    ),
    "a batch larger than the dataset": (
        "SOLVER.IMS_PER_BATCH 8 exceeds the 6 images of cells: batches contain images more than "
        "once. Lower it to 6", "warns",
    ),
    "learning rate steps after the end": (
        "SOLVER.STEPS (5000,) exceed the run's 1 iterations: later steps have no effect", "warns"
    ),
}  # fmt: skip


class Project:
    """Project of a user with six images, an annotation file and a config, all valid."""

    def __init__(self, folder: Path, annotations: Path, images: Path) -> None:
        self.folder, self.annotations, self.images = folder, annotations, images
        self.content: Any = json.loads(annotations.read_text())
        self.entry = {"name": "cells", "annotations": str(annotations), "images": str(images)}
        self.classes = 3  # with the background

    def file(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    def config(self) -> Path:
        cfg = tiny_config(
            "OUTPUT_DIR", str(self.folder / "run"), "DATASETS.ROOT", str(self.folder),
            "DATASETS.CATALOG", [self.entry], "DATASETS.TRAIN", ("cells",),
            "MODEL.ROI_BOX_HEAD.NUM_CLASSES", self.classes, "DATALOADER.NUM_WORKERS", 0,
            "INPUT.MIN_SIZE_TRAIN", 64, "INPUT.MIN_SIZE_TEST", 64,
            "SOLVER.MAX_ITER", 1, "SOLVER.IMS_PER_BATCH", 1,
        )  # fmt: skip
        return self.file("mine.yaml", cfg.dump())

    def train(self, *opts: Any, text: bytes = b"") -> list[Any]:
        """Return the arguments of a training; `text`: of the annotation file."""
        self.annotations.write_bytes(text or json.dumps(self.content).encode())
        return ["train", "--config", self.config(), *opts]


def with_opts(*opts: Any) -> Callable[[Project], list[Any]]:
    return lambda project: project.train(*opts)


def with_change(change: Callable[[Project], object]) -> Callable[[Project], list[Any]]:
    return lambda project: (change(project), project.train())[1]


def with_objects(change: Callable[[dict[str, Any]], object]) -> Callable[[Project], list[Any]]:
    """Change each annotation."""

    def make(project: Project) -> list[Any]:
        for row in project.content["annotations"]:
            change(row)
        return project.train()

    return make


def with_encoding(encoding: str) -> Callable[[Project], list[Any]]:
    """Give a category a name that depends on the encoding."""

    def make(project: Project) -> list[Any]:
        project.content["categories"][0]["name"] = "käfer"
        text = json.dumps(project.content, ensure_ascii=False)
        return project.train(text=text.encode(encoding))

    return make


def yolo_in_pixels(project: Project) -> list[Any]:
    project.annotations.unlink()
    project.file("set/data.yaml", "names: [cat, dog]\n")
    project.file("set/labels/1.txt", "0 64 48 20 10\n")
    return ["init", "--data", project.folder / "set"]


def resized_images(project: Project) -> list[Any]:
    for file in project.images.iterdir():
        Image.open(file).resize((64, 48)).save(file)
    return project.train()


def weights_of_nine_classes(project: Project) -> list[Any]:
    cfg = load_config(project.config(), ["MODEL.ROI_BOX_HEAD.NUM_CLASSES", 9])
    torch.save(build_model(cfg).state_dict(), project.folder / "nine.pth")
    return project.train("MODEL.WEIGHT", project.folder / "nine.pth")


MISTAKES: dict[str, Callable[[Project], list[Any]]] = {
    "the image folder does not exist": with_change(lambda p: p.entry.update(images="photos")),
    "the image folder is the wrong one": with_change(
        lambda p: p.entry.update(images=str(p.folder))
    ),
    "a Windows editor saved the JSON in a local code page": with_encoding("cp1252"),
    "category ids start at 1, but annotations use 0": with_objects(
        lambda row: row.update(category_id=row["category_id"] - 1)
    ),
    "boxes are corners x1, y1, x2, y2": with_objects(
        lambda row: row.update(bbox=np.add(row["bbox"], [0, 0, *row["bbox"][:2]]).tolist())
    ),
    "boxes are fractions of the image size": with_objects(
        lambda row: row.update(bbox=[side / 128 for side in row["bbox"]])
    ),
    "YOLO text files are in pixels": yolo_in_pixels,
    "images were resized after labeling": resized_images,
    "NUM_CLASSES does not include the background": with_change(
        lambda p: setattr(p, "classes", 2)
    ),
    "the learning rate is too high": with_opts(
        "SOLVER.BASE_LR", 1e30, "SOLVER.MAX_ITER", 9, "SOLVER.WARMUP_ITERS", 0
    ),
    "the test set contains training images": with_opts("DATASETS.TEST", "cells"),
    "the config is YOLO's data.yaml": lambda p: [
        "train", "--config", p.file("data.yaml", "names: [a]\ntrain: images\n"),
    ],
    "the weights have a different number of classes": weights_of_nine_classes,
    "byte-order mark": with_encoding("utf-8-sig"),
    "UTF-16": with_encoding("utf-16"),
    "a folder of images as annotation file": with_change(
        lambda p: p.entry.update(annotations=str(p.images))
    ),
    "a LabelMe file": lambda p: p.train(text=b'{"version": "5", "shapes": [], "imagePath": "1"}'),
    "a polygon without the list of polygons": with_objects(
        lambda row: row.update(segmentation=row["segmentation"][0])
    ),
    "a GPU that does not exist": with_opts("MODEL.DEVICE", "cuda:7"),
    "a batch larger than the dataset": with_opts("SOLVER.IMS_PER_BATCH", 8),
    "learning rate steps after the end": with_opts(
        "SOLVER.LR_SCHEDULE", "multistep", "SOLVER.STEPS", "(5000,)"
    ),
}  # fmt: skip


@pytest.mark.parametrize("title", sorted({*ROWS} | {*MISTAKES}))
def test_messages_match_the_page(title, make_coco_dataset, tmp_path, capsys, caplog):
    message, result = ROWS[title]
    arguments = MISTAKES[title](Project(tmp_path, *make_coco_dataset()))
    status = main([*map(str, arguments)])
    output = capsys.readouterr()
    pattern = ".*".join(map(re.escape, message.split("…")))
    if result == "stops":
        assert status == 2
        assert re.search(f"^{pattern}$", output.err, re.M), output.err
        assert "Traceback" not in output.err
    else:
        assert status == 0, output.err
        assert re.search(pattern, caplog.text), caplog.text
