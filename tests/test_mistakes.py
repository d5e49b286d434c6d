"""Mistakes of beginners: each is made by a command, whose message is that of docs/mistakes.md."""

from __future__ import annotations

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

PAGE = Path(__file__).parents[1] / "docs" / "mistakes.md"
ROWS = {
    title: (message, then)
    for title, message, then in re.findall(
        r"^\| (.+?) \| `` (.+) `` \| (.+?) \|$", PAGE.read_text(), re.M
    )
}


class Beginner:
    """Somebody with six pictures, their annotation file and a config, all sound."""

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
        }  # fmt: skip

    @property
    def entry(self) -> dict[str, Any]:
        """That of the data set in the catalog."""
        return self.settings["DATASETS"]["CATALOG"][0]

    def config(self) -> Path:
        file = self.folder / "mine.yaml"
        file.write_text(yaml.safe_dump(self.settings))
        return file

    def train(self, *opts: Any) -> list[Any]:
        return ["train", "--config", self.config(), *opts]

    def test(self, *opts: Any) -> list[Any]:
        return ["test", "--config", self.config(), "DATASETS.TEST", "cells", *opts]

    def relabel(self, change: Callable[[dict[str, Any]], object]) -> list[Any]:
        """Trains after a change of every annotation."""
        content = self.content()
        for row in content["annotations"]:
            change(row)
        return self.with_text(json.dumps(content))

    def with_text(self, text: str | bytes) -> list[Any]:
        """Trains on an annotation file that holds this."""
        self.annotations.write_bytes(text if isinstance(text, bytes) else text.encode())
        return self.train()

    def content(self) -> dict[str, Any]:
        return json.loads(self.annotations.read_text())

    def file(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path


MISTAKES: dict[str, Callable[[Beginner], list[Any]]] = {}
Mistake = Callable[[Beginner], list[Any]]


def mistake(title: str) -> Callable[[Mistake], Mistake]:
    def note(function: Mistake) -> Mistake:
        MISTAKES[title] = function
        return function

    return note


def with_entry(**changes: str) -> Mistake:
    def make(who: Beginner) -> list[Any]:
        who.entry.update(changes)
        return who.train()

    return make


def with_annotations(change: Callable[[dict[str, Any]], object]) -> Mistake:
    return lambda who: who.relabel(change)


def with_encoding(encoding: str) -> Mistake:
    """A category has a letter that encodings write differently."""

    def make(who: Beginner) -> list[Any]:
        content = who.content()
        content["categories"][0]["name"] = "käfer"
        return who.with_text(json.dumps(content, ensure_ascii=False).encode(encoding))

    return make


def with_opts(*opts: Any) -> Mistake:
    return lambda who: who.train(*opts)


def with_config(name: str, text: str) -> Mistake:
    return lambda who: ["train", "--config", who.file(name, text)]


def with_weights(text: str) -> Mistake:
    return lambda who: who.train("MODEL.WEIGHT", who.file("model.pth", text))


MISTAKES |= {
    "the path of a config is wrong": lambda who: ["train", "--config", who.folder / "mine.yml"],
    "the path of an annotation file is wrong": with_entry(annotations="trian.json"),
    "the folder of pictures does not exist": with_entry(images="photos"),
    "an editor of Windows saved the json with a byte-order mark": with_encoding("utf-8-sig"),
    "an editor of Windows saved the json in UTF-16": with_encoding("utf-16"),
    "an editor of Windows saved the json in its own code page": with_encoding("cp1252"),
    "a polygon is not in a list of polygons": with_annotations(
        lambda row: row.update(segmentation=row["segmentation"][0])
    ),
    "categories count from 1 and annotations from 0": with_annotations(
        lambda row: row.update(category_id=row["category_id"] - 1)
    ),
    "masks are missing": with_annotations(lambda row: row.pop("segmentation")),
    "a key on the command line has no value": with_opts("SOLVER.MAX_ITER"),
    "nothing is to be trained": with_opts("SOLVER.MAX_ITER", 0),
    "a GPU is asked for where there is none": with_opts("MODEL.DEVICE", "cuda:7"),
    "the learning rate is too high": with_opts(
        "SOLVER.BASE_LR", 1e30, "SOLVER.MAX_ITER", 9, "SOLVER.WARMUP_ITERS", 0
    ),
    "the batch is larger than the data set": with_opts("SOLVER.IMS_PER_BATCH", 8),
    "the rate is to fall after the end": with_opts(
        "SOLVER.LR_SCHEDULE", "multistep", "SOLVER.STEPS", "(5000,)"
    ),
    "the set to measure on is trained on": with_opts("DATASETS.TEST", "cells"),
    "the path of weights is wrong": lambda who: who.test("MODEL.WEIGHT", who.folder / "model.pth"),
    "a config of detectron2 is given": with_config(
        "detectron2.yaml", "VERSION: 2\nMODEL: {WEIGHTS: x.pkl, ANCHOR_GENERATOR: {SIZES: [[32]]}}"
    ),
    "a config of mmdetection is given": with_config(
        "mask_rcnn.py", "model = dict(type='MaskRCNN')"
    ),
    "YOLO's data.yaml is given as config": with_config("data.yaml", "names: [a]\ntrain: images\n"),
    "the annotation file is given as config": lambda who: ["train", "--config", who.annotations],
    "the file of weights is a pointer of git-lfs": with_weights(
        "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 177\n"
    ),
    "the file of weights is a web page": with_weights("\n<!DOCTYPE html><html>Not found</html>"),
}


@mistake("a folder of pictures is given as annotation file")
def _(who: Beginner) -> list[Any]:
    who.entry["annotations"] = str(who.images)
    return who.train()


@mistake("the folder of pictures is another one")
def _(who: Beginner) -> list[Any]:
    who.entry["images"] = str(who.folder)
    return who.train()


@mistake("OUTPUT_DIR is that of another run")
def _(who: Beginner) -> list[Any]:
    who.file("run/metrics.jsonl", "")
    return who.train()


@mistake("the folder to predict in has no picture")
def _(who: Beginner) -> list[Any]:
    (who.folder / "empty").mkdir()
    return [
        "predict", "--weights", "x.pth", "--input", who.folder / "empty", "--output", who.output,
    ]  # fmt: skip


@mistake("the folder for a new config has no labels")
def _(who: Beginner) -> list[Any]:
    return ["init", "--data", who.images]


@mistake("the json has single quotes")
def _(who: Beginner) -> list[Any]:
    return who.with_text(str(who.content()))


@mistake("the json has a comma too many")
def _(who: Beginner) -> list[Any]:
    return who.with_text(json.dumps(who.content()).replace("]}", "],}"))


@mistake("a text file of YOLO is given as annotation file")
def _(who: Beginner) -> list[Any]:
    who.entry["annotations"] = str(who.file("1.txt", "0 0.5 0.5 0.25 0.125\n"))
    return who.train()


@mistake("a file of LabelMe is given as annotation file")
def _(who: Beginner) -> list[Any]:
    return who.with_text('{"version": "5.4.1", "shapes": [], "imagePath": "1.png"}')


@mistake("boxes are corners x1, y1, x2, y2")
def _(who: Beginner) -> list[Any]:
    def corners(row: dict[str, Any]) -> None:
        x, y, w, h = row["bbox"]
        row["bbox"] = [x, y, x + w, y + h]

    return who.relabel(corners)


@mistake("boxes are fractions of the picture")
def _(who: Beginner) -> list[Any]:
    def fractions(row: dict[str, Any]) -> None:
        x, y, w, h = row["bbox"]
        row["bbox"] = [x / 128, y / 96, w / 128, h / 96]

    return who.relabel(fractions)


@mistake("text files of YOLO count pixels")
def _(who: Beginner) -> list[Any]:
    who.annotations.unlink()
    who.file("set/data.yaml", "names: [cat, dog]\n")
    who.file("set/labels/1.txt", "0 64 48 20 10\n")
    return ["init", "--data", who.folder / "set"]


@mistake("pictures were resized after they were labelled")
def _(who: Beginner) -> list[Any]:
    for file in who.images.iterdir():
        Image.open(file).resize((64, 48)).save(file)
    return who.train()


@mistake("width and height are swapped")
def _(who: Beginner) -> list[Any]:
    content = who.content()
    for row in content["images"]:
        row["width"], row["height"] = row["height"], row["width"]
    for row in content["annotations"]:
        row["bbox"], row["segmentation"] = [1, 1, 9, 9], [[1, 1, 9, 1, 9, 9]]
    return who.with_text(json.dumps(content))


@mistake("the background is not counted")
def _(who: Beginner) -> list[Any]:
    who.settings["MODEL"]["ROI_BOX_HEAD"]["NUM_CLASSES"] = 2
    return who.train()


@mistake("a key is misspelt")
def _(who: Beginner) -> list[Any]:
    who.settings["SOLVER"]["BASE_RL"] = 0.1
    return who.train()


@mistake("a number has a decimal comma")
def _(who: Beginner) -> list[Any]:
    who.settings["SOLVER"]["BASE_LR"] = "0,001"
    return who.train()


@mistake("the set to measure on has no annotations")
def _(who: Beginner) -> list[Any]:
    bare = who.file("bare.json", json.dumps(who.content() | {"annotations": []}))
    catalog = who.settings["DATASETS"]["CATALOG"]
    catalog.append({"name": "bare", "annotations": str(bare), "images": str(who.images)})
    return who.train("DATASETS.TEST", "bare")


@mistake("weights are of another number of classes")
def _(who: Beginner) -> list[Any]:
    cfg = load_config(who.config(), ["MODEL.ROI_BOX_HEAD.NUM_CLASSES", 9])
    torch.save(build_model(cfg).state_dict(), who.folder / "nine.pth")
    return who.train("MODEL.WEIGHT", who.folder / "nine.pth")


def test_the_page_lists_what_is_tested():
    assert list(ROWS) != []
    assert ROWS.keys() == MISTAKES.keys()
    assert len(ROWS) >= 30


@pytest.mark.parametrize("title", MISTAKES)
def test_the_message_is_that_of_the_page(title, make_coco_dataset, tmp_path, capsys, caplog):
    message, then = ROWS[title]
    arguments = MISTAKES[title](Beginner(tmp_path, *make_coco_dataset()))
    status = main([*map(str, arguments)])
    output = capsys.readouterr()
    pattern = ".*".join(map(re.escape, message.split("…")))
    if then == "stops":
        assert status == 2
        assert re.search(f"^{pattern}$", output.err, re.M), output.err
        assert "Traceback" not in output.err
    else:
        assert status == 0, output.err
        assert re.search(pattern, caplog.text), caplog.text
