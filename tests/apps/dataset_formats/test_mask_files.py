"""Folders of mask files."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from detlite.apps.dataset_formats.detect_format import read_set
from detlite.apps.dataset_formats.labeled_dataset import coco_content, image_folder
from detlite.data.errors import DataError
from detlite.structures.masks.formats import to_bitmap


def save(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def two_objects(dtype=np.uint8):
    """A label image of two objects that touch, with values that have a gap."""
    pixels = np.zeros((40, 60), dtype)
    pixels[5:15, 10:20] = 3
    pixels[5:15, 20:40] = 200
    return pixels


def read(folder):
    form, sets = read_set(folder)
    assert form == "mask files"
    return sets["train"]


def assert_two_objects(rows):
    assert [row["bbox"] for row in rows] == [[10, 5, 10, 10], [20, 5, 20, 10]]
    assert [row["area"] for row in rows] == [100, 200]
    assert to_bitmap(rows[1]["segmentation"], 40, 60)[5:15, 20:40].all()


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_label_images(tmp_path, picture, dtype):
    picture(tmp_path / "images/a.jpg")
    picture(tmp_path / "images/empty.jpg")
    save(tmp_path / "masks/a.png", two_objects(dtype))
    found = read(tmp_path)
    content = coco_content(found)
    assert image_folder(found) == tmp_path / "images"
    assert content["categories"] == [{"id": 1, "name": "object"}]
    assert [row["image_id"] for row in content["annotations"]] == [1, 1]
    assert_two_objects(content["annotations"])


def test_colours_are_objects(tmp_path, picture):
    picture(tmp_path / "images/a.jpg")
    colours = np.zeros((40, 60, 3), np.uint8)
    colours[5:15, 10:20] = [0, 255, 0]
    colours[5:15, 20:40] = [0, 255, 1]
    save(tmp_path / "masks/a.png", colours)
    assert_two_objects(coco_content(read(tmp_path))["annotations"])


@pytest.mark.parametrize("own", [True, False])
def test_a_file_an_object(tmp_path, picture, own):
    picture(tmp_path / ("a/images/a.png" if own else "images/a.png"))
    for name, value in (("x1", 3), ("x2", 200)):
        place = f"a/masks/{name}.png" if own else f"masks/a/{name}.png"
        save(tmp_path / place, (two_objects() == value).astype(np.uint8) * 255)
    assert_two_objects(coco_content(read(tmp_path))["annotations"])


def test_folders_of_categories(tmp_path, picture):
    picture(tmp_path / "images/a.jpg")
    save(tmp_path / "masks/worm/a.png", two_objects())
    save(tmp_path / "masks/egg/a/1.png", two_objects() // 200)
    content = coco_content(read(tmp_path))
    assert [row["name"] for row in content["categories"]] == ["egg", "worm"]
    assert [row["category_id"] for row in content["annotations"]] == [1, 2, 2]


def test_masks_beside_folders(tmp_path, picture):
    picture(tmp_path / "images/a.jpg")
    file = save(tmp_path / "masks/a.png", two_objects())
    save(tmp_path / "masks/.hidden/b.png", two_objects())
    assert_two_objects(coco_content(read(tmp_path))["annotations"])
    save(tmp_path / "masks/worm/a.png", two_objects())
    with pytest.raises(DataError, match=r"lies beside folders of categories \(worm\)") as raised:
        read_set(tmp_path)
    assert str(raised.value).startswith(f"{file}: ")


@pytest.mark.parametrize(
    ("name", "pixels", "problem"),
    [
        ("masks/a.png", np.ones((40, 59), np.uint8), r"is 59x40 .*, but its picture is 60x40"),
        ("masks/b.png", two_objects(), "is the mask of no picture: there is neither b nor ."),
        ("masks/a.jpg", two_objects(), "masks are stored without loss"),
        ("masks/a/1.png", np.zeros((40, 60), np.uint8), "is empty: no pixel of the object is set"),
    ],
)
def test_bad_mask_is_named(tmp_path, picture, name, pixels, problem):
    picture(tmp_path / "images/a.jpg")
    file = save(tmp_path / name, pixels)
    with pytest.raises(DataError, match=problem) as raised:
        read_set(tmp_path)
    assert str(raised.value).startswith(f"{file}: ")


def test_damaged_mask_is_named(tmp_path, picture):
    picture(tmp_path / "images/a.jpg")
    file = save(tmp_path / "masks/a.png", two_objects())
    file.write_bytes(file.read_bytes()[:60])
    with pytest.raises(DataError, match=r"a\.png: the mask is damaged"):
        read_set(tmp_path)


def test_masks_without_objects(tmp_path, picture):
    picture(tmp_path / "images/a.jpg")
    (tmp_path / "masks").mkdir()
    with pytest.raises(DataError, match="none of 1 pictures has a labelled object"):
        coco_content(read(tmp_path))
