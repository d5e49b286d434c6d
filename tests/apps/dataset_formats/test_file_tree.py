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
def test_names_of_other_machines(tmp_path, image, name):
    file = image(tmp_path / "pictures/Ä b.png", 4, 4)
    image(tmp_path / "pictures/other.png", 4, 4)
    tree = FileTree(tmp_path)
    assert tree.image(name, tmp_path / "labels/x.json") == file


def test_files_of_operating_systems_are_skipped(tmp_path, image, text):
    file = image(tmp_path / "a.png", 4, 4)
    names = "._a.png", ".DS_Store", "__MACOSX/a.png", "Thumbs.db", "detlite/images/a.png"
    for name in names:
        text(tmp_path / name, "")
    assert FileTree(tmp_path).files == [file]


def test_drawn_labels_are_skipped(tmp_path, image):
    file = image(tmp_path / "JPEGImages/own_visualization/a.jpg", 4, 4)
    for folder in ("AnnotationsVisualization", "SegmentationObjectVisualization", "Visualization"):
        image(tmp_path / f"{folder}/a.jpg", 4, 4)
    assert FileTree(tmp_path).images == [file]


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


def test_image_next_to_the_label_file_or_with_the_same_folders(tmp_path, image):
    train, val = (image(tmp_path / f"{split}/images/a.png", 4, 4) for split in ("train", "val"))
    tree = FileTree(tmp_path)
    assert tree.image("a.png", tmp_path / "val/labels/a.txt") == val
    assert tree.image("data/train/images/a.png", tmp_path / "list.txt") == train
    with pytest.raises(DataError, match=r"list\.txt: a\.png is ambiguous: .*a\.png or .*a\.png"):
        tree.image("a.png", tmp_path / "list.txt")
    with pytest.raises(DataError, match=r"list\.txt: its image 'b\.png' is not in .*--images"):
        tree.image("b.png", tmp_path / "list.txt")


def test_unsupported_images_are_not_reported_as_missing(tmp_path, image, text):
    text(tmp_path / "a.heic", "")
    with pytest.raises(DataError, match=r"a\.heic: has an unsupported format; convert it"):
        FileTree(tmp_path).image("a.jpg", tmp_path / "a.xml")


def test_images_of_a_label_file(tmp_path, image, text):
    file = image(tmp_path / "images/a.png", 4, 4)
    labels = text(tmp_path / "labels/all.json", "{}")
    other = image(tmp_path / "elsewhere/a.png", 4, 4)
    assert FileTree(labels, tmp_path / "elsewhere").image("a.png", labels) == other
    other.unlink()
    assert FileTree(labels).image("a.png", labels) == file


def test_paths_relative_to_the_label_file(tmp_path, image):
    file = image(tmp_path / "photos/a.png", 4, 4)
    (tmp_path / "labels").mkdir()
    tree = FileTree(tmp_path / "labels")
    assert tree.image(r"..\photos\a.png", tmp_path / "labels/a.json") == file


@pytest.mark.parametrize("name", ["../../secret.png", "{}/secret.png", "..\\..\\secret.png"])
@pytest.mark.parametrize("form", ["labelme", "voc", "yolo list", "yolo folder", "coco"])
def test_images_outside_of_the_dataset_are_not_read(tmp_path, image, text, form, name):
    folder, name = tmp_path / "user/set", name.format(tmp_path.as_posix())
    image(tmp_path / "secret.png")
    text(tmp_path / "secret.txt", "0 0.5 0.5 0.2 0.2")
    image(folder / "a.png")
    shapes = [{"label": "a", "points": [[1, 1], [5, 1], [5, 5]], "shape_type": "polygon"}]
    if form == "labelme":
        text(folder / "x.json", json.dumps({"imagePath": name, "shapes": shapes}))
    elif form == "voc":
        box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>5</xmax><ymax>5</ymax></bndbox>"
        labels = f"<filename>{name}</filename><object><name>a</name>{box}</object>"
        text(folder / "x.xml", f"<annotation>{labels}</annotation>")
    elif form == "coco":
        content = coco_content([coco_object([1, 1, 5, 5])], [1])
        content["images"][0]["file_name"] = name
        text(folder / "x.json", json.dumps(content))
    else:
        train = "list.txt" if form == "yolo list" else name.replace("\\", "/")[:-11]
        text(folder / "list.txt", name)
        text(folder / "data.yaml", f"names: [a]\ntrain: {json.dumps(train)}\n")
    with pytest.raises(DataError, match="--images"):
        find_sets(folder)


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
            {"train.txt": "# names\na\n./images/b.png", "valid.txt": "c.png"},
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


def test_the_nearest_image_counts_levels_up_and_down(tmp_path, image):
    near = image(tmp_path / "set/img/a.png", 4, 4)
    image(tmp_path / "set/datasets/inner/img/a.png", 4, 4)
    assert FileTree(tmp_path).image("a.png", tmp_path / "set/ann/a.png.json") == near
