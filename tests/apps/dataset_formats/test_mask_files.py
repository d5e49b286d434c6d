"""Test reading folders of mask files."""

import numpy as np
import pytest
from PIL import Image

from detlite.apps.dataset_formats.find_annotations import read_folder
from detlite.apps.dataset_formats.labeled_dataset import to_coco
from detlite.data.errors import DataError
from detlite.structures.masks.formats import to_bitmap


def save(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def two_objects(dtype=np.uint8):
    """Return a label image of two touching objects with the values 3 and 200."""
    pixels = np.zeros((40, 60), dtype)
    pixels[5:15, 10:20] = 3
    pixels[5:15, 20:40] = 200
    return pixels


def read(folder):
    format, sets = read_folder(folder)
    assert format == "mask files"
    return sets["train"]


def assert_two_objects(rows):
    assert [row["bbox"] for row in rows] == [[10, 5, 10, 10], [20, 5, 20, 10]]
    assert [row["area"] for row in rows] == [100, 200]
    assert to_bitmap(rows[1]["segmentation"], 40, 60)[5:15, 20:40].all()


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_label_images(tmp_path, image, dtype):
    image(tmp_path / "images/a.jpg")
    image(tmp_path / "images/empty.jpg")
    save(tmp_path / "masks/a.png", two_objects(dtype))
    dataset = read(tmp_path)
    content = to_coco(dataset)
    assert dataset.image_folder == tmp_path / "images"
    assert content["categories"] == [{"id": 1, "name": "object"}]
    assert [row["image_id"] for row in content["annotations"]] == [1, 1]
    assert_two_objects(content["annotations"])


def test_every_color_is_an_object(tmp_path, image):
    image(tmp_path / "images/a.jpg")
    colors = np.zeros((40, 60, 3), np.uint8)
    colors[5:15, 10:20] = [0, 255, 0]
    colors[5:15, 20:40] = [0, 255, 1]
    save(tmp_path / "masks/a.png", colors)
    assert_two_objects(to_coco(read(tmp_path))["annotations"])


@pytest.mark.parametrize("own", [True, False])
def test_one_file_for_each_object(tmp_path, image, own):
    image(tmp_path / ("a/images/a.png" if own else "images/a.png"))
    for name, value in (("x1", 3), ("x2", 200)):
        place = f"a/masks/{name}.png" if own else f"masks/a/{name}.png"
        save(tmp_path / place, (two_objects() == value).astype(np.uint8) * 255)
    assert_two_objects(to_coco(read(tmp_path))["annotations"])


def test_category_folders(tmp_path, image):
    image(tmp_path / "images/a.jpg")
    save(tmp_path / "masks/worm/a.png", two_objects())
    save(tmp_path / "masks/egg/a/1.png", two_objects() // 200)
    content = to_coco(read(tmp_path))
    assert [row["name"] for row in content["categories"]] == ["egg", "worm"]
    assert [row["category_id"] for row in content["annotations"]] == [1, 2, 2]


def test_masks_next_to_category_folders(tmp_path, image):
    image(tmp_path / "images/a.jpg")
    file = save(tmp_path / "masks/a.png", two_objects())
    save(tmp_path / "masks/.hidden/b.png", two_objects())
    assert_two_objects(to_coco(read(tmp_path))["annotations"])
    save(tmp_path / "masks/worm/a.png", two_objects())
    with pytest.raises(DataError, match=r"is next to folders of categories \(worm\)") as raised:
        read_folder(tmp_path)
    assert str(raised.value).startswith(f"{file}: ")


@pytest.mark.parametrize(
    ("name", "pixels", "problem"),
    [
        (
            "masks/a.png",
            np.ones((40, 59), np.uint8),
            "its size is 59x40 .*, but its image is 60x40",
        ),
        ("masks/b.png", two_objects(), "belongs to no image: .*images contains neither b nor ."),
        ("masks/a.jpg", two_objects(), "masks need a lossless format"),
        (
            "masks/a/1.png",
            np.zeros((40, 60), np.uint8),
            "the mask is empty: no pixel",
        ),
    ],
)
def test_invalid_mask(tmp_path, image, name, pixels, problem):
    image(tmp_path / "images/a.jpg")
    file = save(tmp_path / name, pixels)
    with pytest.raises(DataError, match=problem) as raised:
        read_folder(tmp_path)
    assert str(raised.value).startswith(f"{file}: ")


def test_damaged_mask(tmp_path, image):
    image(tmp_path / "images/a.jpg")
    file = save(tmp_path / "masks/a.png", two_objects())
    file.write_bytes(file.read_bytes()[:60])
    with pytest.raises(DataError, match=r"a\.png: the mask is damaged"):
        read_folder(tmp_path)


def test_masks_without_objects(tmp_path, image):
    image(tmp_path / "images/a.jpg")
    (tmp_path / "masks").mkdir()
    with pytest.raises(DataError, match="none of 1 images has a labeled object"):
        to_coco(read(tmp_path))
