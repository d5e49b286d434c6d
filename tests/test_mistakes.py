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

    def train(self, *opts: Any, text: str | bytes = "", **entry: Any) -> list[Any]:
        """Return the arguments of a training.

        Args:
            opts: overrides.
            text: new content of the annotation file; empty for the valid one.
            entry: changes of the entry of the dataset in DATASETS.CATALOG.
        """
        if text:
            self.annotations.write_bytes(text if isinstance(text, bytes) else text.encode())
        self.settings["DATASETS"]["CATALOG"][0].update(entry)
        return ["train", "--config", self.config(), *opts]

    def test(self, *opts: Any) -> list[Any]:
        return ["test", "--config", self.config(), "DATASETS.TEST", "cells", *opts]

    def config(self) -> Path:
        return self.file("mine.yaml", yaml.safe_dump(self.settings))

    def content(self) -> dict[str, Any]:
        return json.loads(self.annotations.read_text())

    def file(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path


Mistake = Callable[[Project], list[Any]]


def with_entry(**changes: str) -> Mistake:
    return lambda project: project.train(**changes)


def with_annotations(change: Callable[[dict[str, Any]], object]) -> Mistake:
    """Change each annotation."""

    def make(project: Project) -> list[Any]:
        content = project.content()
        for row in content["annotations"]:
            change(row)
        return project.train(text=json.dumps(content))

    return make


def with_encoding(encoding: str) -> Mistake:
    """Give a category a name that depends on the encoding."""

    def make(project: Project) -> list[Any]:
        content = project.content()
        content["categories"][0]["name"] = "käfer"
        text = json.dumps(content, ensure_ascii=False)
        return project.train(text=text.encode(encoding))

    return make


def with_opts(*opts: Any) -> Mistake:
    return lambda project: project.train(*opts)


def with_setting(section: str, key: str, value: Any) -> Mistake:
    """Change a key of the config; `section` may be nested, such as MODEL.ROI_BOX_HEAD."""

    def make(project: Project) -> list[Any]:
        node = project.settings
        for name in section.split("."):
            node = node[name]
        node[key] = value
        return project.train()

    return make


def with_config(name: str, text: str) -> Mistake:
    return lambda project: ["train", "--config", project.file(name, text)]


def with_weights(text: str) -> Mistake:
    return lambda project: project.train("MODEL.WEIGHT", project.file("model.pth", text))


def with_box(change: Callable[..., list[float]]) -> Mistake:
    """Replace each box [x, y, w, h] by `change(x, y, w, h)`."""
    return with_annotations(lambda row: row.update(bbox=change(*row["bbox"])))


def empty_folder(project: Project) -> list[Any]:
    folder = project.folder / "empty"
    folder.mkdir()
    config, weights = project.config(), project.folder / "weights.pth"
    torch.save(build_model(load_config(config)).state_dict(), weights)
    arguments = ["predict", "--config", config, "--weights", weights]
    return [*arguments, "--input", folder, "--output", project.output]


def another_run(project: Project) -> list[Any]:
    project.file("run/metrics.jsonl", "")
    return [*project.train(), f"OUTPUT_DIR={project.output}"]


def yolo_in_pixels(project: Project) -> list[Any]:
    project.annotations.unlink()
    project.file("set/data.yaml", "names: [cat, dog]\n")
    project.file("set/labels/1.txt", "0 64 48 20 10\n")
    return ["init", "--data", project.folder / "set"]


def resized_images(project: Project) -> list[Any]:
    for file in project.images.iterdir():
        Image.open(file).resize((64, 48)).save(file)
    return project.train()


def swapped_sides(project: Project) -> list[Any]:
    content = project.content()
    for row in content["images"]:
        row["width"], row["height"] = row["height"], row["width"]
    for row in content["annotations"]:
        row["bbox"], row["segmentation"] = [1, 1, 9, 9], [[1, 1, 9, 1, 9, 9]]
    return project.train(text=json.dumps(content))


def bare_test_set(project: Project) -> list[Any]:
    bare = project.file("bare.json", json.dumps(project.content() | {"annotations": []}))
    catalog = project.settings["DATASETS"]["CATALOG"]
    catalog.append({"name": "bare", "annotations": str(bare), "images": str(project.images)})
    return project.train("DATASETS.TEST", "bare")


def weights_of_nine_classes(project: Project) -> list[Any]:
    cfg = load_config(project.config(), ["MODEL.ROI_BOX_HEAD.NUM_CLASSES", 9])
    torch.save(build_model(cfg).state_dict(), project.folder / "nine.pth")
    return project.train("MODEL.WEIGHT", project.folder / "nine.pth")


MISTAKES: dict[str, Mistake] = {
    "the path of a config is wrong": lambda p: ["train", "--config", p.folder / "mine.yml"],
    "the path of an annotation file is wrong": with_entry(annotations="trian.json"),
    "the annotation file is a folder of images": lambda p: p.train(annotations=str(p.images)),
    "the image folder does not exist": with_entry(images="photos"),
    "the image folder is the wrong one": lambda p: p.train(images=str(p.folder)),
    "the output folder already contains another run": another_run,
    "the folder to predict on has no images": empty_folder,
    "the folder for `detlite init` has no labels": lambda p: ["init", "--data", p.images],
    "a Windows editor saved the JSON with a byte-order mark": with_encoding("utf-8-sig"),
    "a Windows editor saved the JSON in UTF-16": with_encoding("utf-16"),
    "a Windows editor saved the JSON in a local code page": with_encoding("cp1252"),
    "the JSON has single quotes": lambda p: p.train(text=str(p.content())),
    "the JSON has an extra comma": lambda p: p.train(
        text=json.dumps(p.content()).replace("]}", "],}")
    ),
    "the annotation file is a YOLO text file": lambda p: p.train(
        annotations=str(p.file("1.txt", "0 0.5 0.5 0.25 0.125\n"))
    ),
    "the annotation file is a LabelMe file": lambda p: p.train(
        text='{"version": "5.4.1", "shapes": [], "imagePath": "1.png"}'
    ),
    "a polygon is not in a list of polygons": with_annotations(
        lambda row: row.update(segmentation=row["segmentation"][0])
    ),
    "boxes are corners x1, y1, x2, y2": with_box(lambda x, y, w, h: [x, y, x + w, y + h]),
    "boxes are fractions of the image size": with_box(
        lambda x, y, w, h: [x / 128, y / 96, w / 128, h / 96]
    ),
    "YOLO text files are in pixels": yolo_in_pixels,
    "images were resized after labeling": resized_images,
    "width and height are swapped": swapped_sides,
    "category ids start at 1, but annotations use 0": with_annotations(
        lambda row: row.update(category_id=row["category_id"] - 1)
    ),
    "masks are missing": with_annotations(lambda row: row.pop("segmentation")),
    "NUM_CLASSES does not include the background": with_setting(
        "MODEL.ROI_BOX_HEAD", "NUM_CLASSES", 2
    ),
    "a key is misspelled": with_setting("SOLVER", "BASE_RL", 0.1),
    "a number has a decimal comma": with_setting("SOLVER", "BASE_LR", "0,001"),
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
    "the test set has no annotations": bare_test_set,
    "the path of weights is wrong": lambda p: p.test("MODEL.WEIGHT", p.folder / "model.pth"),
    "the weights have a different number of classes": weights_of_nine_classes,
    "the config is a detectron2 config": with_config(
        "detectron2.yaml", "VERSION: 2\nMODEL: {WEIGHTS: x.pkl, ANCHOR_GENERATOR: {SIZES: [[32]]}}"
    ),
    "the config is an mmdetection config": with_config(
        "mask_rcnn.py", "model = dict(type='MaskRCNN')"
    ),
    "the config is YOLO's data.yaml": with_config("data.yaml", "names: [a]\ntrain: images\n"),
    "the config is an annotation file": lambda p: ["train", "--config", p.annotations],
    "the weights are a git-lfs pointer": with_weights(
        "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 177\n"
    ),
    "the weights are a web page": with_weights("\n<!DOCTYPE html><html>Not found</html>"),
}


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
