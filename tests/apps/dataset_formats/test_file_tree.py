"""Test finding the images that label files of other machines name."""

import json
import unicodedata
from pathlib import Path

import pytest

from detlite.apps.dataset_formats import find_sets
from detlite.apps.dataset_formats.file_tree import FileTree
from detlite.files.errors import DataError
from tests.builders import coco_content, coco_object


@pytest.mark.parametrize(
    "name",
    [
        "Ä b.png",
        "ä b.PNG",
        r"C:\data\pictures\Ä b.png",
        "/home/someone/pictures/Ä b.png",
        "%C3%84%20b.png",
        unicodedata.normalize("NFD", "Ä b.png"),
        "/data/upload/7/0a1b2c3d-Ä b.png",
        "/data/local-files/?d=set%2Fpictures%2F%C3%84%20b.png",
        "http://host:8080/pictures/Ä%20b.png?token=5",
        "Ä b",
        "Ä b.tif",
    ],
)
def test_names_of_other_machines(folder, name):
    root = folder({"pictures/Ä b.png": None, "pictures/other.png": None})
    assert FileTree(root).image(name, root / "labels/x.json") == root / "pictures/Ä b.png"


def test_files_of_other_programs_are_skipped(folder):
    """Of operating systems, and drawings of labels by LabelMe."""
    junk = "._a.png", ".DS_Store", "__MACOSX/a.png", "Thumbs.db", "detlite/images/a.png"
    drawn = "AnnotationsVisualization", "SegmentationObjectVisualization", "Visualization"
    kept = {"JPEGImages/own_visualization/a.jpg": None}
    root = folder(kept | dict.fromkeys(junk, "") | {f"{name}/a.jpg": None for name in drawn})
    assert FileTree(root).files == [root / name for name in kept]


def test_runs_of_detlite_are_skipped(tmp_path, image, text):
    """Their images.json is a COCO file without annotations, and their drawings are no data."""
    kept = [image(tmp_path / "a.png", 4, 4), text(tmp_path / "ann.json", "{}")]
    for folder in ("", "found/", "video/"):
        for name in ("images.json", f"results.{'csv' if folder else 'json'}", "manifest.json"):
            text(tmp_path / folder / name, "{}")
    image(tmp_path / "found/drawn/0001_a.jpg", 4, 4)
    for name in ("metrics.jsonl", "results_val.json", "config.yaml", "detections.png"):
        text(tmp_path / "output/set" / name, "")
    assert FileTree(tmp_path).files == kept
    other = text(tmp_path / "coco/images.json", "{}")  # not next to results
    assert FileTree(tmp_path).files == [*kept, other]


def test_nearest_image(folder):
    """It is next to the label file, or in the same folders as its name."""
    train, val, other = "train/images/a.png", "val/images/a.png", "other/img/a.png"
    deep = "other/datasets/inner/img/a.png"
    root = folder({train: None, val: None, other: None, deep: None, "b.heic": ""})
    tree = FileTree(root)
    for name, labels, expected in (
        ("a.png", "val/labels/a.txt", val),
        ("data/train/images/a.png", "list.txt", train),
        ("a.png", "other/ann/a.png.json", other),
    ):
        assert tree.image(name, root / labels) == root / expected
    for name, problem in (
        ("a.png", r"list\.txt: a\.png is ambiguous: .*a\.png or .*a\.png"),
        ("c.png", r"list\.txt: its image 'c\.png' is not in .*--images"),
        ("b.jpg", r"b\.heic: has an unsupported format; convert it"),
    ):
        with pytest.raises(DataError, match=problem):
            tree.image(name, root / "list.txt")


def test_images_of_a_label_file(folder):
    root = folder({"images/a.png": None, "labels/all.json": "{}", "elsewhere/a.png": None})
    labels = root / "labels/all.json"
    assert FileTree(labels, root / "elsewhere").image("a.png", labels) == root / "elsewhere/a.png"
    (root / "elsewhere/a.png").unlink()
    assert FileTree(labels).image("a.png", labels) == root / "images/a.png"
    relative = FileTree(root / "labels").image(r"..\images\a.png", labels)
    assert relative == root / "images/a.png"


@pytest.mark.parametrize("name", ["../../secret.png", "{}/secret.png", "..\\..\\secret.png"])
@pytest.mark.parametrize("form", ["labelme", "voc", "yolo list", "yolo folder", "coco"])
def test_images_outside_of_the_dataset_are_not_read(tmp_path, folder, form, name):
    name = name.format(tmp_path.as_posix())
    shape = {"label": "a", "points": [[1, 1], [5, 1], [5, 5]], "shape_type": "polygon"}
    box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>5</xmax><ymax>5</ymax></bndbox>"
    content = coco_content([coco_object([1, 1, 5, 5])], [1])
    content["images"][0]["file_name"] = name
    train = "list.txt" if form == "yolo list" else name.replace("\\", "/")[:-11]
    yolo = {"list.txt": name, "data.yaml": f"names: [a]\ntrain: {json.dumps(train)}\n"}
    files = {
        "labelme": {"x.json": json.dumps({"imagePath": name, "shapes": [shape]})},
        "voc": {"x.xml": f"<annotation><filename>{name}</filename><object><name>a</name>{box}"
                         "</object></annotation>"},
        "coco": {"x.json": json.dumps(content)},
        "yolo list": yolo,
        "yolo folder": yolo,
    }[form]  # fmt: skip
    folder({"secret.png": None, "secret.txt": "0 0.5 0.5 0.2 0.2", "user/set/a.png": None})
    folder({f"user/set/{file}": content for file, content in files.items()})
    with pytest.raises(DataError, match="--images"):
        find_sets(tmp_path / "user/set")


def test_locate_paths_of_other_machines(tmp_path, text):
    file = text(tmp_path / "lists/train.txt", "")
    tree = FileTree(tmp_path)
    for name in ("lists/train.txt", "data/lists/train.txt", r"D:\set\lists\train.txt"):
        assert tree.locate(name, tmp_path) == file
    assert tree.locate(".", tmp_path / "lists") == tmp_path / "lists"
    assert tree.locate("data/val.txt", tmp_path) is None


@pytest.mark.parametrize(
    ("lists", "splits"),
    [
        (
            {"train.txt": "\ufeff# names\na\n./images/b.png\n\na\n", "valid.txt": "c.png"},
            ["train", "train", "val"],
        ),
        ({"train.txt": "images/a.png masks/a.png\n"}, ["train", "unlisted", "unlisted"]),
        (
            {
                "ImageSets/Main/trainval.txt": "a\nb\nc\n",
                "ImageSets/Main/train.txt": "a\n",
                "ImageSets/Main/val.txt": "b 1\n",
                "ImageSets/Main/cat_train.txt": "c 1\n",
                "ImageSets/Segmentation/train.txt": "c\n",
            },
            ["train", "val", "train"],
        ),
        (
            {
                "ImageSets/Segmentation/trainval.txt": "a\nb\n",
                "ImageSets/Segmentation/test.txt": "c\nz\n",
            },
            ["train", "train", "test"],
        ),
        ({"train.txt": "lr: 0.1\n", "val.txt": "a\n"}, [None] * 3),
        ({"notes/train.txt": "a\n"}, [None] * 3),
    ],
)
def test_splits_by_lists(tmp_path, image, text, lists, splits):
    images = [image(tmp_path / f"images/{name}.png", 4, 4) for name in "abc"]
    for name, content in lists.items():
        text(tmp_path / name, content)
    tree = FileTree(tmp_path)
    assert [tree.split_of(file) for file in images] == splits
    assert tree.lists[1] == []


def test_listed_names_without_a_file(tmp_path, image, text):
    image(tmp_path / "a.png", 4, 4)
    text(tmp_path / "train.txt", "a\nb\n")
    (problem,) = FileTree(tmp_path).lists[1]
    assert problem == f"{tmp_path}/train.txt: lists b, but no file has this name"


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("train2017/a.png", "train"),
        ("images/Validation/a.png", "val"),
        ("test_1/images/a.png", "test"),
        ("trains/a.png", None),
        ("train.png", None),
    ],
)
def test_split_by_folder(tmp_path, path, split):
    assert FileTree(tmp_path).split_of(tmp_path / path) == split
    assert FileTree(tmp_path).split_of(Path("/train/a.png")) is None


def test_links_to_folders_outside_are_followed(tmp_path, image):
    """Links within the folder or to a folder that was followed before add nothing."""
    file = image(tmp_path / "disk/photos/a.png", 4, 4)
    data = tmp_path / "data"
    (data / "real").mkdir(parents=True)
    (data / "images").symlink_to(file.parent)
    (data / "images2").symlink_to(file.parent)
    (data / "again").symlink_to(data / "real")
    (file.parent / "loop").symlink_to(tmp_path / "disk")
    assert FileTree(data).images == [data / "images/a.png", data / "images/loop/photos/a.png"]
