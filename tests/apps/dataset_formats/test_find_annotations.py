"""Test the conversion of files and folders in any format to COCO files."""

import json
import re
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from detlite.apps.dataset_formats import Conversion, convert, find_sets
from detlite.apps.dataset_formats.find_annotations import read_folder
from detlite.data.annotations.store import REPEATED
from detlite.data.datasets.coco import CocoDataset
from detlite.data.datasets.options import DatasetOptions
from detlite.files.errors import DataError
from tests.builders import coco_content, coco_object, write_text


def content_of(source):
    return json.loads(source.annotations.read_text())


def names(source):
    return [row["file_name"] for row in content_of(source)["images"]]


def test_folder_is_converted_and_split(yolo_folder):
    sets, summary = find_sets(yolo_folder)
    files = [yolo_folder / "detlite/train.json", yolo_folder / "detlite/val.json"]
    assert [source.annotations for source in sets.values()] == files
    assert "chosen by a hash of their names" in summary
    assert str(files[1]) in summary
    for source in sets.values():
        CocoDataset(source.annotations, source.images, DatasetOptions(train=True, masks=False))
    train, val = map(names, sets.values())
    assert sorted(train + val) == [f"{number}.jpg" for number in range(10)]
    assert 1 <= len(val) <= 4
    before = [file.read_bytes() for file in files]
    find_sets(yolo_folder)
    assert [file.read_bytes() for file in files] == before


def write_deep_images(folder, kind, count=16):
    """Write images of bright squares in 10 of 16 bits or in floats; the last two are equal."""
    names = [f"{'abcdefghijklmnop'[n]}.tif" for n in range(count)]
    for n, name in enumerate(names):
        rng = np.random.default_rng(min(n, count - 2))
        pixels = rng.normal(120, 5, (64, 64))
        for x, y in rng.integers(4, 44, (4, 2)):
            pixels[y : y + 14, x : x + 14] = 900
        Image.fromarray((pixels / 1e4 if kind == "f" else pixels).astype(kind)).save(folder / name)
    objects = [coco_object([1, 1, 9, 9], image=number) for number in range(count)]
    content = coco_content(objects, range(count), (64, 64), {1: "cell"})
    for n, (row, name) in enumerate(zip(content["images"], names, strict=True)):
        row |= {"file_name": name, "plate": n // 4}
    write_text(folder / "a.json", json.dumps(content))
    return folder


@pytest.mark.parametrize("kind", ["u2", "f"])
def test_deep_images_are_compared_as_they_will_be_read(tmp_path, kind):
    _, summary = find_sets(write_deep_images(tmp_path, kind))
    assert "; 2 nearly identical images stay together" in summary


def test_images_of_a_plate_stay_together(tmp_path):
    sets, summary = find_sets(write_deep_images(tmp_path, "u2"), group_by="plate")
    assert "16 images grouped by plate stay together" in summary
    plates = [{row["plate"] for row in content_of(source)["images"]} for source in sets.values()]
    assert not plates[0] & plates[1]
    files = [source.annotations for source in sets.values()]
    with pytest.raises(DataError, match=r"--group-by has no effect: .*val.json are used"):
        find_sets(files[0], files[1], group_by="plate")


def test_equal_train_and_val_are_split(yolo_folder, text):
    """coco128.yaml, for example, lists the same images twice."""
    text(yolo_folder / "data.yaml", "names: [cat]\ntrain: images\nval: images\n")
    sets, _ = find_sets(yolo_folder)
    train, val = (set(names(sets[split])) for split in ("train", "val"))
    assert train
    assert val
    assert train.isdisjoint(val)
    ((file, findings),) = convert(yolo_folder, yolo_folder / "all.json").items()
    assert len(json.loads(file.read_text())["images"]) == len(train | val)
    assert "images listed as train and as val: 10 images" in "".join(map(str, findings))


def test_annotation_files(yolo_folder, tmp_path):
    """One is split, and two are used unchanged."""
    (file,) = convert(yolo_folder, tmp_path / "all.json")
    sets, _ = find_sets(file, images=yolo_folder / "images", folder=tmp_path / "made")
    assert sets["val"].annotations == tmp_path / "made/all_val.json"
    assert sets["train"].images == yolo_folder / "images"
    made, _ = find_sets(yolo_folder)
    files = [made[split].annotations for split in ("train", "val")]
    sets, summary = find_sets(files[0], files[1])
    assert [source.annotations for source in sets.values()] == files
    assert "written" not in summary
    assert sets["val"].images == yolo_folder / "images"


def test_both_sets_need_the_same_categories(yolo_folder, tmp_path, folder):
    folder({"val/a.jpg": None, "val/a.txt": "0 0.5 0.5 0.2 0.2\n", "val/classes.txt": "dog\n"})
    convert(tmp_path / "val", tmp_path / "val.json")
    problem = r"categories are not those of the training set: .*: none; .*: cat; only in val: dog"
    for val, images in ((tmp_path / "val", None), (tmp_path / "val.json", tmp_path)):
        with pytest.raises(DataError, match=problem):
            find_sets(yolo_folder, val, images)


def test_convert_keeps_the_splits(yolo_folder, tmp_path, text):
    text(yolo_folder / "data.yaml", "names: [cat]\ntrain: train.txt\nval: val.txt\n")
    for name, numbers in (("train", range(7)), ("val", range(7, 10))):
        text(yolo_folder / f"{name}.txt", "".join(f"images/{n}.jpg\n" for n in numbers))
    files = [*convert(yolo_folder, tmp_path / "out.json")]
    assert [file.name for file in files] == ["out_train.json", "out_val.json"]
    with pytest.raises(DataError, match="is COCO json already: use it with"):
        convert(files[0], tmp_path / "again.json")
    convert(yolo_folder, yolo_folder / "all.json")
    convert(yolo_folder, yolo_folder / "all.json")  # its output is not read as an input
    (yolo_folder / "data.yaml").unlink()
    with pytest.raises(DataError, match=r"all_train\.json: is COCO json already"):
        convert(yolo_folder, tmp_path / "again.json")


def test_unwritable_output_folder(make_coco_dataset, tmp_path):
    annotations, images = make_coco_dataset(images=6)
    (annotations.parent / "detlite").touch()  # blocks the default folder
    hint = f"choose another folder: `detlite init --data {annotations} --annotations FOLDER`"
    with pytest.raises(DataError, match=rf"cannot be written .*; {re.escape(hint)}"):
        find_sets(annotations, images=images)
    sets, _ = find_sets(annotations, images=images, folder=tmp_path / "elsewhere")
    assert sets["train"].annotations.parent == tmp_path / "elsewhere"
    with pytest.raises(DataError, match=r"cannot be written \([^;]*$"):
        find_sets(annotations, images=images, folder=annotations.parent / "detlite")


def write_coco_set(file, categories, *names, **entry):
    """Write a COCO file with a box of each category in each image, and another image `entry`."""
    images = range(1, len(names) + 1)
    objects = [
        coco_object([1, 1, 9, 9], number, image) for image in images for number in categories
    ]
    content = coco_content(objects, images, (40, 60), categories)
    for row, name in zip(content["images"], names, strict=True):
        row["file_name"] = name
    content["images"] += [entry] if entry else []
    write_text(file, json.dumps(content))


def test_categories_are_matched_by_name(tmp_path, image):
    for split, categories in (("train", {1: "cat", 2: "dog"}), ("valid", {0: " Dog", 3: "owl"})):
        image(tmp_path / f"{split}/a.jpg")
        write_coco_set(tmp_path / split / "_annotations.coco.json", categories, "a.jpg")
    sets, _ = find_sets(tmp_path)
    train, val = map(content_of, sets.values())
    for content in (train, val):
        listed = [(row["id"], row["name"]) for row in content["categories"]]
        assert listed == [(1, "cat"), (2, "dog"), (3, "owl")]
    assert [row["category_id"] for row in train["annotations"]] == [1, 2]
    assert [row["category_id"] for row in val["annotations"]] == [2, 3]
    assert val["findings"][0]["example"] == "owl"


@pytest.mark.parametrize("name", ["C:\\x\\photos\\a b.jpg", "/home/me/photos/a b.jpg", "a%20b.jpg"])
def test_coco_names_of_other_machines(tmp_path, folder, name):
    """Problems of other entries are reported, too."""
    folder({"photos/a b.jpg": None, "photos/c.jpg": None})
    bad = {"id": 9, "file_name": "d.jpg", "height": -1, "width": 5}
    write_coco_set(tmp_path / "labels.json", {1: "cat"}, name, "c.jpg", **bad)
    sets, _ = find_sets(tmp_path)
    for source in sets.values():
        assert all((source.images / file).is_file() for file in names(source))
    rows = (row for source in sets.values() for row in content_of(source)["findings"])
    findings = {row["what"]: row["example"] for row in rows}
    assert "file names in another notation" in findings
    problem = "image 9, entry 2 of 'images': has height: -1, which"
    assert problem in findings["entries of images that cannot be used"]


@pytest.mark.parametrize(
    "content",
    [
        '{"categories": [{"id": 0, "name": "cat"}]}',
        '{"images": [], "name": "x"}',
        '{"annotations": [{"caption": "x"}]}',
        '{"images": [], "annotations": []}',
    ],
)
def test_json_files_without_annotations_are_skipped(yolo_folder, text, content):
    file = text(yolo_folder / "other.json", content)
    assert find_sets(yolo_folder)[1].startswith("read as YOLO")
    if '"images": [], "annotations"' in content:
        with pytest.raises(DataError, match="'categories' is missing; 'images', 'annotations' and"):
            find_sets(file)


def test_label_file_of_another_format(folder, tmp_path):
    box = {"label": "cell", "points": [[5, 6], [15, 14]], "shape_type": "rectangle"}
    content = json.dumps({"shapes": [box], "imagePath": "a.jpg"})
    folder({"images/a.jpg": None, "annotations/a.json": content})
    sets, summary = find_sets(tmp_path / "annotations/a.json")
    assert summary.startswith("read as LabelMe; only one image")
    assert sets["train"].annotations == tmp_path / "annotations/detlite/a_train.json"
    assert sets["train"].images == tmp_path / "images"


def test_findings_are_part_of_the_written_file(yolo_folder, text):
    text(yolo_folder / "labels/0.txt", "0 0.5 0.5 0.2 0.2\n0 0.5 0.5 0 0.2\n")
    with pytest.raises(DataError, match="--skip-bad"):
        find_sets(yolo_folder)
    sets, _ = find_sets(yolo_folder, skip_bad=True)
    (whole,) = convert(yolo_folder, yolo_folder / "whole.json", Conversion(skip_bad=True))
    text(yolo_folder / "data.yaml", "names: [cat]\ntrain: train.txt\nval: val.txt\n")
    for split, numbers in (("train", "01234"), ("val", "56789")):
        text(yolo_folder / f"{split}.txt", "\n".join(f"images/{n}.jpg" for n in numbers))
    divided, _ = find_sets(yolo_folder, folder=yolo_folder / "divided", skip_bad=True)
    again, _ = find_sets(whole, folder=yolo_folder / "again")
    for sources in (sets, divided, again):
        counts = {}
        for split, source in sources.items():
            content = content_of(source)
            has_bad = "0.jpg" in {row["file_name"] for row in content["images"]}
            counts[split] = [(row["what"], row["count"]) for row in content.get("findings", ())]
            assert counts[split] == [("bad labels", 1)] * has_bad
        assert any(counts.values())


def test_findings_are_counted_by_split(tmp_path, image):
    """Entries in other notations, and images without a size, belong to the split of their image."""
    objects = [coco_object([20, 15, 20, 10], image=number) for number in range(10)]
    content = coco_content(objects, range(10), (40, 60), ["cat"])
    for number, row in enumerate(content["images"]):
        image(tmp_path / row["file_name"])
        row |= {"height": None, "width": None} if number % 2 else {"height": "40"}
    for row in content["annotations"][:6]:
        row["bbox"] = ["20", "15", "20", "10"]
    content["annotations"] += [{**content["annotations"][0], "id": 99}]
    write_text(tmp_path / "a.json", json.dumps(content))
    sets, _ = find_sets(tmp_path)
    total = Counter()
    for source in sets.values():
        content = content_of(source)
        ids = {row["id"] for row in content["images"]}
        expected = {
            "numbers as text": sum(number < 6 for number in ids) + (0 in ids),
            "sizes of images as text or fractions": sum(number % 2 == 0 for number in ids),
            "images without height and width": sum(number % 2 for number in ids),
            REPEATED: int(0 in ids),
        }
        found = {row["what"]: row["count"] for row in content["findings"]}
        assert found == {what: count for what, count in expected.items() if count}
        shown = [re.search(r"image (\d+)|$", row["example"])[1] for row in content["findings"]]
        assert {int(number) for number in filter(None, shown)} <= ids
        total.update(found)
    assert total["numbers as text"] == 7


def test_rotated_boxes_of_cvat_are_written_as_read(tmp_path, image):
    turned = {"attributes": {"rotation": 90.0}}
    objects = [coco_object([20, 15, 20, 10], image=number, **turned) for number in range(4)]
    for number in range(4):
        image(tmp_path / f"{number}.png")
    content = coco_content(objects, range(4), (40, 60), ["cat"])
    write_text(tmp_path / "a.json", json.dumps(content))
    sources, _ = find_sets(tmp_path)
    for source in sources.values():
        for row in content_of(source)["annotations"]:
            assert row["bbox"] == pytest.approx([25, 10, 10, 20])
            assert row["attributes"] == {"rotation": 0}
        dataset = CocoDataset(source.annotations, source.images, DatasetOptions(masks=False))
        (finding,) = dataset.findings
        found = f"boxes with attributes.rotation: {len(dataset)} annotation"
        assert str(finding).startswith(found)


@pytest.mark.parametrize(
    ("labels", "listed", "expected"),
    [
        ("b", "", ["b"]),
        ("b", "__ignore__\nc\nb\n\na\n", ["c", "b", "a"]),
        ("b", "c\n", ["b"]),
        ("ba", "b\na\n", ["b", "a"]),  # the same order as without an object of a category
    ],
)
def test_listed_categories_without_objects_are_kept(folder, labels, listed, expected):
    """A model of three categories suggested images, which contain objects of one."""
    box = {"points": [[1, 1], [9, 9]], "shape_type": "rectangle"}
    shapes = [box | {"label": label} for label in labels]
    content = json.dumps({"shapes": shapes, "imagePath": "a.png"})
    root = folder({"a.png": None, "a.json": content, "labels.txt": listed})
    assert list(read_folder(root)[1]["train"].categories) == expected
    assert list(read_folder(root / "a.json")[1]["train"].categories) == sorted(labels)
