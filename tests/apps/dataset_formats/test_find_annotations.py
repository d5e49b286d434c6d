"""From folders and files of any form to annotation files in COCO's."""

from __future__ import annotations

import json
import re

import pytest

from detlite.apps.dataset_formats import convert, find_sets
from detlite.apps.dataset_formats.coco_files import coco_files, find_pictures
from detlite.apps.dataset_formats.coco_writer import split_content, write_coco
from detlite.data.datasets.coco import CocoDataset
from detlite.data.errors import DataError


@pytest.fixture
def folder(tmp_path, picture, text):
    """A set of ten labelled pictures in YOLO's form."""
    for number in range(10):
        picture(tmp_path / f"set/images/{number}.jpg")
        text(tmp_path / f"set/labels/{number}.txt", "0 0.5 0.5 0.2 0.2\n")
    text(tmp_path / "set/data.yaml", "names: [cat]\n")
    return tmp_path / "set"


def names(file):
    return [row["file_name"] for row in json.loads(file.read_text())["images"]]


def test_a_folder_is_written_and_split(folder):
    sets, how = find_sets(folder)
    assert [one.annotations for one in sets.values()] == [
        folder / "detlite/train.json", folder / "detlite/val.json",
    ]  # fmt: skip
    assert "by a hash of their names" in how
    assert str(folder / "detlite/val.json") in how
    for one in sets.values():
        CocoDataset(one.annotations, one.images, train=True, masks=False)
    parts = [names(one.annotations) for one in sets.values()]
    assert sorted(parts[0] + parts[1]) == [f"{number}.jpg" for number in range(10)]
    assert 1 <= len(parts[1]) <= 4
    before = [one.annotations.read_bytes() for one in sets.values()]
    again, _ = find_sets(folder)
    assert [one.annotations.read_bytes() for one in again.values()] == before


def test_a_picture_stays_on_its_side_when_others_come(folder, picture, text):
    measured: list[str] = []
    for count in (20, 60):
        for number in range(count):
            picture(folder / f"images/{number}.jpg")
            text(folder / f"labels/{number}.txt", "0 0.5 0.5 0.2 0.2\n")
        before, measured = measured, names(find_sets(folder)[0]["val"].annotations)
        assert 0.05 * count <= len(measured) <= 0.35 * count
    assert before
    assert {name for name in measured if int(name[:-4]) < 20} == set(before)


def test_a_picture_stays_on_its_side_when_a_folder_comes(folder, picture, text):
    def measured():
        sets, _ = find_sets(folder)
        found = sets["val"]
        return {
            name.name
            for name in (found.images / name for name in names(found.annotations))
            if name.parent.name == "one"
        }

    for split in ("one", "two"):
        before = measured() if split == "two" else set()
        for number in range(40):
            picture(folder / f"images/{split}/{number}.png", 4, 4)
            text(folder / f"labels/{split}/{number}.txt", "0 0.5 0.5 0.2 0.2\n")
        if split == "one":
            for number in range(10):
                (folder / f"images/{number}.jpg").unlink()
    assert before
    assert measured() == before


def test_the_same_pictures_in_both_parts_are_divided(folder, text):
    """As in coco128.yaml."""
    text(folder / "data.yaml", "names: [cat]\ntrain: images\nval: images\n")
    sets, how = find_sets(folder)
    assert "whose train and val are the same pictures; " in how
    trained, measured = (set(names(sets[split].annotations)) for split in ("train", "val"))
    assert trained
    assert measured
    assert trained.isdisjoint(measured)


def test_an_annotation_file_is_split(folder, tmp_path):
    (file,) = convert(folder, tmp_path / "all.json")
    sets, _ = find_sets(file, images=folder / "images", folder=tmp_path / "made")
    assert sets["val"].annotations == tmp_path / "made/all_val.json"
    assert sets["train"].images == folder / "images"


def test_annotation_files_of_both_sets_stay_as_they_are(folder, tmp_path):
    made, _ = find_sets(folder)
    files = [made[split].annotations for split in ("train", "val")]
    sets, how = find_sets(files[0], files[1])
    assert [one.annotations for one in sets.values()] == files
    assert "written" not in how
    assert sets["val"].images == folder / "images"


def test_one_labelled_picture_is_not_split(folder):
    for number in range(1, 10):
        (folder / f"labels/{number}.txt").unlink()
    sets, how = find_sets(folder)
    assert list(sets) == ["train"]
    assert "but one picture with an object" in how


def test_the_sets_have_the_same_categories(folder, tmp_path, picture, text):
    picture(tmp_path / "val/a.jpg")
    text(tmp_path / "val/a.txt", "0 0.5 0.5 0.2 0.2\n")
    text(tmp_path / "val/classes.txt", "dog\n")
    with pytest.raises(DataError, match=r"a\.jpg: has an object of category 'dog', which is none"):
        find_sets(folder, tmp_path / "val")
    convert(tmp_path / "val", tmp_path / "val/val.json")
    with pytest.raises(DataError, match=r"val\.json: has other categories .*1 \('cat'\)|'dog'"):
        find_sets(folder, tmp_path / "val/val.json")


def test_convert_keeps_what_is_divided_already(folder, tmp_path, text):
    text(folder / "data.yaml", "names: [cat]\ntrain: images\nval: images\n")
    files = convert(folder, tmp_path / "out.json")
    assert [file.name for file in files] == ["out_train.json", "out_val.json"]
    with pytest.raises(DataError, match="is no folder, so there is nothing to convert"):
        convert(files[0], tmp_path / "again.json")
    convert(folder, folder / "all.json")
    convert(folder, folder / "all.json")  # that one is no reason not to
    (folder / "data.yaml").unlink()
    with pytest.raises(DataError, match=r"all_train\.json: is COCO json already"):
        convert(folder, tmp_path / "again.json")


def test_layouts_of_coco_json(tmp_path, text):
    coco = '{"info": {}, "images": [], "annotations": [], "categories": []}'
    text(tmp_path / "one/instances.json", coco)
    assert list(coco_files(tmp_path / "one")) == ["train"]
    for name in ("train", "valid", "test"):
        text(tmp_path / f"three/{name}/_annotations.coco.json", coco)
    assert {k: v.parent.name for k, v in coco_files(tmp_path / "three").items()} == {
        "train": "train", "val": "valid",
    }  # fmt: skip
    text(tmp_path / "three/train/other.json", coco)
    with pytest.raises(DataError, match=r"several annotation files .*: name that to train on"):
        coco_files(tmp_path / "three")


def test_pictures_are_found(folder, tmp_path):
    (file,) = convert(folder, folder / "annotations" / "all.json")
    assert find_pictures(file) == folder / "images"
    (file,) = convert(folder, tmp_path / "far" / "away" / "all.json")
    with pytest.raises(DataError, match=r"such as 0\.jpg, are not in .*: name the folder"):
        find_pictures(file)
    assert find_pictures(file, folder / "images") == folder / "images"


def test_pictures_of_equal_names_are_told_apart_by_the_split(tmp_path, folder, picture, text):
    (file,) = convert(folder, tmp_path / "many" / "annotations" / "train.json")
    root = file.parent.parent
    val = text(file.with_name("instances_valid.json"), file.read_text())
    for split in ("test", "train2017", "val2017"):
        for number in range(10):
            picture(root / split / f"{number}.jpg")
    assert find_pictures(file) == root / "train2017"
    assert find_pictures(val) == root / "val2017"
    both = text(file.with_name("trainval.json"), file.read_text())
    with pytest.raises(DataError, match=r"may be those in \S*test, \S*train2017, .* by --images"):
        find_pictures(both)
    (root / "images").symlink_to(root / "test")
    assert find_pictures(both) == root / "images"


def test_a_file_of_both_sets_is_not_divided(tmp_path, text):
    coco = '{"images": [], "annotations": [], "categories": []}'
    for name in ("trainval", "test"):
        text(tmp_path / f"annotations/{name}.json", coco)
    assert {k: v.stem for k, v in coco_files(tmp_path).items()} == {"train": "trainval"}
    for name in ("train", "val"):
        text(tmp_path / f"annotations/{name}.json", coco)
    assert {k: v.stem for k, v in coco_files(tmp_path).items()} == {"train": "train", "val": "val"}


def test_places_that_cannot_be_looked_into_hold_no_pictures(tmp_path, folder, monkeypatch):
    (file,) = convert(folder, folder / "annotations" / "all.json")
    content = json.loads(file.read_text())
    content["images"][0]["file_name"] = "x" * 300  # the system refuses to ask for it
    file.write_text(json.dumps(content))
    listed = type(folder).iterdir

    def refuse(path):
        if path.name == "annotations":
            raise PermissionError
        return listed(path)

    monkeypatch.setattr(type(folder), "iterdir", refuse)
    assert find_pictures(file) == folder / "images"


def test_both_halves_have_an_object():
    rows = [{"id": number, "file_name": f"{number}.jpg"} for number in range(40)]
    for labelled in ([3, 7], [0, 39], list(range(40))):
        annotations = [{"image_id": number} for number in labelled]
        halves = split_content({"images": rows, "annotations": annotations, "categories": []})
        for half in halves.values():
            own = {row["id"] for row in half["images"]}
            assert half["annotations"]
            assert all(row["image_id"] in own for row in half["annotations"])
        assert sum(len(half["images"]) for half in halves.values()) == 40


def test_what_cannot_be_read_or_written(tmp_path, picture):
    picture(tmp_path / "set/a.jpg")
    with pytest.raises(DataError, match=r"holds no annotations that are known, but 1 \.jpg"):
        find_sets(tmp_path / "set")
    with pytest.raises(DataError, match=r"none: there is no such file or folder"):
        find_sets(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written"):
        write_coco({}, tmp_path / "file" / "a.json")


def test_a_folder_that_cannot_be_written_to(make_coco_dataset, tmp_path):
    annotations, images = make_coco_dataset(images=6)
    (annotations.parent / "detlite").touch()  # where a folder would be made
    way_out = f"detlite init --data {annotations} --annotations FOLDER` writes elsewhere"
    with pytest.raises(DataError, match=rf"cannot be written .*; `{re.escape(way_out)}"):
        find_sets(annotations, images=images)
    sets, _ = find_sets(annotations, images=images, folder=tmp_path / "elsewhere")
    assert sets["train"].annotations.parent == tmp_path / "elsewhere"
    with pytest.raises(DataError, match=r"cannot be written \([^;]*$"):
        find_sets(annotations, images=images, folder=annotations.parent / "detlite")
