"""Test finding, writing and splitting COCO files."""

import json

import numpy as np
import pytest

from detlite.apps.dataset_formats import convert
from detlite.apps.dataset_formats.coco_files import (
    find_coco_files,
    find_images,
    read_coco,
    split_content,
)
from detlite.apps.dataset_formats.file_tree import FileTree
from detlite.files.errors import DataError

EMPTY = '{"images": [], "annotations": [], "categories": []}'


@pytest.mark.parametrize(
    ("files", "used", "unused"),
    [
        (["instances"], {"train": "instances"}, []),
        (["train/_annotations.coco", "valid/_annotations.coco", "test/_annotations.coco"],
         {"train": "train/_annotations.coco", "val": "valid/_annotations.coco"},
         ["test/_annotations.coco"]),
        (["train/_annotations.coco", "test/_annotations.coco"],
         {"train": "train/_annotations.coco"}, ["test/_annotations.coco"]),
        # A file for both splits is for training.
        (["annotations/test", "annotations/trainval"], {"train": "annotations/trainval"},
         ["annotations/test"]),
        (["annotations/corrected", "annotations/train", "annotations/trainval", "annotations/val"],
         {"train": "annotations/train", "val": "annotations/val"},
         ["annotations/corrected", "annotations/trainval"]),
    ],
)  # fmt: skip
def test_files_are_found_by_name(tmp_path, text, files, used, unused):
    for name in files:
        text(tmp_path / f"{name}.json", EMPTY)
    found, others = find_coco_files(FileTree(tmp_path))
    assert found == {split: tmp_path / f"{name}.json" for split, name in used.items()}
    assert others == [tmp_path / f"{name}.json" for name in unused]


def test_ambiguous_files(tmp_path, text):
    for name in ("train/_annotations.coco", "train/other", "test/_annotations.coco"):
        text(tmp_path / f"{name}.json", EMPTY)
    with pytest.raises(DataError, match=r"several annotation files .*: name the one to train on"):
        find_coco_files(FileTree(tmp_path))


def test_equal_names_in_two_folders_are_ambiguous(folder, tmp_path):
    rows = [{"id": k, "file_name": f"{k}.jpg", "height": 8, "width": 8} for k in "ab"]
    content = {"images": rows, "annotations": [], "categories": [{"id": 1, "name": "cat"}]}
    folder({"x/a.jpg": None, "y/a.jpg": None, "x/b.jpg": None, "labels.json": json.dumps(content)})
    with pytest.raises(DataError, match=r"a\.jpg is ambiguous: .*; remove one"):
        read_coco(tmp_path / "labels.json", tmp_path)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32"])
def test_encodings_of_a_file(tmp_path, encoding):
    (tmp_path / "instances.json").write_text(EMPTY, encoding)
    assert find_coco_files(FileTree(tmp_path))[0]


def test_images_near_the_file_or_in_a_given_folder(yolo_folder, tmp_path):
    (file,) = convert(yolo_folder, yolo_folder / "annotations" / "all.json")
    assert find_images(file) == yolo_folder / "images"
    (file,) = convert(yolo_folder, tmp_path / "far" / "away" / "all.json")
    with pytest.raises(DataError, match=r"such as 0\.jpg, are not in .*: name the folder"):
        find_images(file)
    assert find_images(file, yolo_folder / "images") == yolo_folder / "images"


def test_split_in_the_file_name_selects_the_image_folder(tmp_path, yolo_folder, image, text):
    (file,) = convert(yolo_folder, tmp_path / "several" / "annotations" / "train.json")
    root = file.parent.parent
    val = text(file.with_name("instances_valid.json"), file.read_text())
    for split in ("test", "train2017", "val2017"):
        for number in range(10):
            image(root / split / f"{number}.jpg")
    assert find_images(file) == root / "train2017"
    assert find_images(val) == root / "val2017"
    both = text(file.with_name("trainval.json"), file.read_text())
    with pytest.raises(DataError, match=r"several folders \(\S*test, \S*train2017, .* --images"):
        find_images(both)
    (root / "images").symlink_to(root / "test")
    assert find_images(both) == root / "images"


def content_of(names, annotated=None):
    """Return content with an object in each image, or in those with the numbers `annotated`."""
    numbers = range(len(names)) if annotated is None else annotated
    return {
        "images": [{"id": n, "file_name": name} for n, name in enumerate(names)],
        "annotations": [{"image_id": n, "category_id": 1} for n in numbers],
        "categories": [],
    }


FORTY = [f"{number}.jpg" for number in range(40)]


def test_both_splits_have_an_object():
    for annotated in ([3, 7], [0, 39], range(40)):
        splits = split_content(content_of(FORTY, annotated))
        for content in splits.values():
            ids = {row["id"] for row in content["images"]}
            assert content["annotations"]
            assert all(row["image_id"] in ids for row in content["annotations"])
        assert sum(len(content["images"]) for content in splits.values()) == 40


def test_image_stays_in_its_split_when_images_or_a_folder_are_added():
    def val(names, within=""):
        return {
            row["file_name"] for row in split_content(content_of(names), within)["val"]["images"]
        }

    names = [f"{n}.jpg" for n in range(1500)]
    assert val(names[:1000]) == val(names) & {*names[:1000]}
    two = val([f"{folder}/{name}" for folder in ("one", "two") for name in names], "images")
    assert {f"one/{name}" for name in val(names, "images/one")} == {
        name for name in two if name.startswith("one/")
    }  # fmt: skip


def test_every_category_has_a_training_image():
    """Images 0 and 9 of the hash order would be in val without the rule."""
    content = content_of(FORTY)
    in_val = [row["id"] for row in split_content(content)["val"]["images"]]
    rare = [{"image_id": in_val[0], "category_id": 2}]
    rare += [{"image_id": number, "category_id": 3} for number in in_val[1:3]]
    parts = split_content({**content, "annotations": content["annotations"] + rare})
    assert {row["category_id"] for row in parts["train"]["annotations"]} == {1, 2, 3}
    kept = {row["id"] for row in parts["val"]["images"]}
    assert len({*in_val} - kept) == 2  # of categories 2 and 3
    assert len(kept) == len(in_val)
    # Both splits have an object, even if "val" then has the only one of a category.
    single = [{"image_id": number, "category_id": number} for number in (3, 7, 9)]
    parts = split_content({**content, "annotations": single})
    assert sorted(len(parts[split]["annotations"]) for split in ("train", "val")) == [1, 2]


def test_annotations_of_no_image_stay_in_train():
    content = {
        "images": [{"id": number, "file_name": f"{number}.jpg"} for number in range(9)],
        "annotations": [{"image_id": number} for number in (*range(9), [1], {}, None, 99)],
    }
    parts = split_content(content)
    assert [row["image_id"] for row in parts["train"]["annotations"]][-4:] == [[1], {}, None, 99]


def test_groups_of_images_are_not_split():
    content = content_of(FORTY)
    parts = split_content(content, labels=np.arange(40) // 4 * 4)
    ids = [{row["id"] // 4 for row in parts[split]["images"]} for split in ("train", "val")]
    assert not ids[0] & ids[1]
    assert sorted(ids[0] | ids[1]) == list(range(10))
    assert len(ids[1]) == 2
    assert split_content(content, labels=np.zeros(40, int)).keys() == {"train"}


@pytest.mark.parametrize(
    ("sizes", "fewest", "most"),
    [([1] * 2, 1, 1), ([1] * 4, 1, 1), ([1] * 10, 2, 2), ([1] * 18, 3, 4), ([1] * 60, 10, 14),
     ([10] * 10, 20, 20), ([25] * 4, 25, 25), ([60, 2, 2, 2, 2, 2], 8, 10), ([30, 30, 2], 2, 30)],
)  # fmt: skip
def test_one_in_five(sizes, fewest, most):
    owners = np.repeat(np.arange(len(sizes)), sizes)
    labels = np.searchsorted(owners, owners)
    for seed in range(10):
        content = content_of([f"{seed}_{n}.png" for n in range(len(owners))])
        assert fewest <= len(split_content(content, labels=labels)["val"]["images"]) <= most
