"""Common mistakes: commands print the messages that docs/mistakes.md lists."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image

from detlite.apps.cli.main import main
from detlite.config import load_config
from detlite.modeling import build_model

pytestmark = pytest.mark.usefixtures("without_drawings")

PAGE = Path(__file__).parents[1] / "docs" / "mistakes.md"
ROWS = {
    title: (message, result)
    for title, message, result in re.findall(
        r"^\| (.+?) \| `` (.+) `` \| (.+?) \|$", PAGE.read_text(), re.M
    )
}


class Project:
    """Project of a user with six images, an annotation file and a config, all valid."""

    def __init__(self, folder: Path, annotations: Path, images: Path) -> None:
        self.folder, self.annotations, self.images = folder, annotations, images
        self.output = folder / "run"
        self.settings: dict[str, Any] = {
            "_BASE_": "_base_/from_scratch_fpn.yaml",
            "OUTPUT_DIR": str(self.output),
            "DATASETS": {
                "ROOT": str(folder),
                "CATALOG": [
                    {"name": "cells", "annotations": str(annotations), "images": str(images)}
                ],
                "TRAIN": ["cells"],
            },
            "INPUT": {"MIN_SIZE_TRAIN": 64, "MIN_SIZE_TEST": 64},
            "MODEL": {
                "DEVICE": "cpu",
                "MASK_ON": True,
                "GROUP_NORM": {"NUM_GROUPS": 4},
                "RESNETS": {
                    "STEM_OUT_CHANNELS": 8, "RES2_OUT_CHANNELS": 8, "BACKBONE_OUT_CHANNELS": 16
                },
                "RPN": {"FPN_POST_NMS_TOP_N_TRAIN": 50, "FPN_POST_NMS_TOP_N_TEST": 30},
                "ROI_BOX_HEAD": {"NUM_CLASSES": 3, "MLP_HEAD_DIM": 16},
                "ROI_MASK_HEAD": {"CONV_LAYERS": [16]},
            },
            "SOLVER": {"MAX_ITER": 1, "IMS_PER_BATCH": 1},
            "DATALOADER": {"NUM_WORKERS": 0},
            "TEST": {"REPORT": False},
        }  # fmt: skip

    @property
    def entry(self) -> dict[str, Any]:
        """Entry of the dataset in DATASETS.CATALOG."""
        return self.settings["DATASETS"]["CATALOG"][0]

    def config(self) -> Path:
        file = self.folder / "mine.yaml"
        file.write_text(yaml.safe_dump(self.settings))
        return file

    def train(self, *opts: Any) -> list[Any]:
        return ["train", "--config", self.config(), *opts]

    def test(self, *opts: Any) -> list[Any]:
        return ["test", "--config", self.config(), "DATASETS.TEST", "cells", *opts]

    def train_with_changed_annotations(
        self, change: Callable[[dict[str, Any]], object]
    ) -> list[Any]:
        """Change each annotation, and return the arguments of a training."""
        content = self.content()
        for row in content["annotations"]:
            change(row)
        return self.train_with_text(json.dumps(content))

    def train_with_text(self, text: str | bytes) -> list[Any]:
        """Write the annotation file, and return the arguments of a training."""
        self.annotations.write_bytes(text if isinstance(text, bytes) else text.encode())
        return self.train()

    def content(self) -> dict[str, Any]:
        return json.loads(self.annotations.read_text())

    def file(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path


MISTAKES: dict[str, Callable[[Project], list[Any]]] = {}
Mistake = Callable[[Project], list[Any]]


def mistake(title: str) -> Callable[[Mistake], Mistake]:
    def add(function: Mistake) -> Mistake:
        MISTAKES[title] = function
        return function

    return add


def with_entry(**changes: str) -> Mistake:
    def make(project: Project) -> list[Any]:
        project.entry.update(changes)
        return project.train()

    return make


def with_annotations(change: Callable[[dict[str, Any]], object]) -> Mistake:
    return lambda project: project.train_with_changed_annotations(change)


def with_encoding(encoding: str) -> Mistake:
    """Give a category a name that depends on the encoding."""

    def make(project: Project) -> list[Any]:
        content = project.content()
        content["categories"][0]["name"] = "käfer"
        return project.train_with_text(json.dumps(content, ensure_ascii=False).encode(encoding))

    return make


def with_opts(*opts: Any) -> Mistake:
    return lambda project: project.train(*opts)


def with_config(name: str, text: str) -> Mistake:
    return lambda project: ["train", "--config", project.file(name, text)]


def with_weights(text: str) -> Mistake:
    return lambda project: project.train("MODEL.WEIGHT", project.file("model.pth", text))


MISTAKES |= {
    "the path of a config is wrong": lambda project: [
        "train",
        "--config",
        project.folder / "mine.yml",
    ],
    "the path of an annotation file is wrong": with_entry(annotations="trian.json"),
    "the image folder does not exist": with_entry(images="photos"),
    "a Windows editor saved the JSON with a byte-order mark": with_encoding("utf-8-sig"),
    "a Windows editor saved the JSON in UTF-16": with_encoding("utf-16"),
    "a Windows editor saved the JSON in a local code page": with_encoding("cp1252"),
    "a polygon is not in a list of polygons": with_annotations(
        lambda row: row.update(segmentation=row["segmentation"][0])
    ),
    "category ids start at 1, but annotations use 0": with_annotations(
        lambda row: row.update(category_id=row["category_id"] - 1)
    ),
    "masks are missing": with_annotations(lambda row: row.pop("segmentation")),
    "an override has no value": with_opts("SOLVER.MAX_ITER"),
    "the number of iterations is 0": with_opts("SOLVER.MAX_ITER", 0),
    "MODEL.DEVICE names a GPU that does not exist": with_opts("MODEL.DEVICE", "cuda:7"),
    "the learning rate is too high": with_opts(
        "SOLVER.BASE_LR", 1e30, "SOLVER.MAX_ITER", 9, "SOLVER.WARMUP_ITERS", 0
    ),
    "the batch is larger than the dataset": with_opts("SOLVER.IMS_PER_BATCH", 8),
    "learning rate steps are after the end of the run": with_opts(
        "SOLVER.LR_SCHEDULE", "multistep", "SOLVER.STEPS", "(5000,)"
    ),
    "the test set contains training images": with_opts("DATASETS.TEST", "cells"),
    "the path of weights is wrong": lambda project: project.test(
        "MODEL.WEIGHT", project.folder / "model.pth"
    ),
    "the config is a detectron2 config": with_config(
        "detectron2.yaml", "VERSION: 2\nMODEL: {WEIGHTS: x.pkl, ANCHOR_GENERATOR: {SIZES: [[32]]}}"
    ),
    "the config is an mmdetection config": with_config(
        "mask_rcnn.py", "model = dict(type='MaskRCNN')"
    ),
    "the config is YOLO's data.yaml": with_config("data.yaml", "names: [a]\ntrain: images\n"),
    "the config is an annotation file": lambda project: ["train", "--config", project.annotations],
    "the weights are a git-lfs pointer": with_weights(
        "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 177\n"
    ),
    "the weights are a web page": with_weights("\n<!DOCTYPE html><html>Not found</html>"),
}


@mistake("the annotation file is a folder of images")
def _(project: Project) -> list[Any]:
    project.entry["annotations"] = str(project.images)
    return project.train()


@mistake("the image folder is the wrong one")
def _(project: Project) -> list[Any]:
    project.entry["images"] = str(project.folder)
    return project.train()


@mistake("the output folder already contains another run")
def _(project: Project) -> list[Any]:
    project.file("run/metrics.jsonl", "")
    return [*project.train(), f"OUTPUT_DIR={project.output}"]


@mistake("the folder to predict on has no images")
def _(project: Project) -> list[Any]:
    folder = project.folder / "empty"
    folder.mkdir()
    return ["predict", "--weights", "x.pth", "--input", folder, "--output", project.output]


@mistake("the folder for `detlite init` has no labels")
def _(project: Project) -> list[Any]:
    return ["init", "--data", project.images]


@mistake("the JSON has single quotes")
def _(project: Project) -> list[Any]:
    return project.train_with_text(str(project.content()))


@mistake("the JSON has an extra comma")
def _(project: Project) -> list[Any]:
    return project.train_with_text(json.dumps(project.content()).replace("]}", "],}"))


@mistake("the annotation file is a YOLO text file")
def _(project: Project) -> list[Any]:
    project.entry["annotations"] = str(project.file("1.txt", "0 0.5 0.5 0.25 0.125\n"))
    return project.train()


@mistake("the annotation file is a LabelMe file")
def _(project: Project) -> list[Any]:
    return project.train_with_text('{"version": "5.4.1", "shapes": [], "imagePath": "1.png"}')


@mistake("boxes are corners x1, y1, x2, y2")
def _(project: Project) -> list[Any]:
    def corners(row: dict[str, Any]) -> None:
        x, y, w, h = row["bbox"]
        row["bbox"] = [x, y, x + w, y + h]

    return project.train_with_changed_annotations(corners)


@mistake("boxes are fractions of the image size")
def _(project: Project) -> list[Any]:
    def fractions(row: dict[str, Any]) -> None:
        x, y, w, h = row["bbox"]
        row["bbox"] = [x / 128, y / 96, w / 128, h / 96]

    return project.train_with_changed_annotations(fractions)


@mistake("YOLO text files are in pixels")
def _(project: Project) -> list[Any]:
    project.annotations.unlink()
    project.file("set/data.yaml", "names: [cat, dog]\n")
    project.file("set/labels/1.txt", "0 64 48 20 10\n")
    return ["init", "--data", project.folder / "set"]


@mistake("images were resized after labeling")
def _(project: Project) -> list[Any]:
    for file in project.images.iterdir():
        Image.open(file).resize((64, 48)).save(file)
    return project.train()


@mistake("width and height are swapped")
def _(project: Project) -> list[Any]:
    content = project.content()
    for row in content["images"]:
        row["width"], row["height"] = row["height"], row["width"]
    for row in content["annotations"]:
        row["bbox"], row["segmentation"] = [1, 1, 9, 9], [[1, 1, 9, 1, 9, 9]]
    return project.train_with_text(json.dumps(content))


@mistake("NUM_CLASSES does not include the background")
def _(project: Project) -> list[Any]:
    project.settings["MODEL"]["ROI_BOX_HEAD"]["NUM_CLASSES"] = 2
    return project.train()


@mistake("a key is misspelled")
def _(project: Project) -> list[Any]:
    project.settings["SOLVER"]["BASE_RL"] = 0.1
    return project.train()


@mistake("a number has a decimal comma")
def _(project: Project) -> list[Any]:
    project.settings["SOLVER"]["BASE_LR"] = "0,001"
    return project.train()


@mistake("the test set has no annotations")
def _(project: Project) -> list[Any]:
    bare = project.file("bare.json", json.dumps(project.content() | {"annotations": []}))
    catalog = project.settings["DATASETS"]["CATALOG"]
    catalog.append({"name": "bare", "annotations": str(bare), "images": str(project.images)})
    return project.train("DATASETS.TEST", "bare")


@mistake("the weights have a different number of classes")
def _(project: Project) -> list[Any]:
    cfg = load_config(project.config(), ["MODEL.ROI_BOX_HEAD.NUM_CLASSES", 9])
    torch.save(build_model(cfg).state_dict(), project.folder / "nine.pth")
    return project.train("MODEL.WEIGHT", project.folder / "nine.pth")


def test_the_page_lists_the_tested_mistakes():
    assert list(ROWS) != []
    assert ROWS.keys() == MISTAKES.keys()
    assert len(ROWS) >= 30


@pytest.mark.parametrize("title", MISTAKES)
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
