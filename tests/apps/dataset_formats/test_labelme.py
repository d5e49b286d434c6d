"""Test reading LabelMe's json files."""

import base64
import io
import json

import numpy as np
import pytest
from PIL import Image

from detlite.apps.dataset_formats.find_annotations import read_folder
from detlite.apps.dataset_formats.labeled_dataset import to_coco
from detlite.data.errors import DataError
from detlite.structures.masks.formats import to_bitmap


def shape(label, points, kind="polygon", **more):
    return {"label": label, "points": points, "shape_type": kind, "group_id": None, **more}


TRIANGLE = [[10, 10], [30, 10], [10, 30.5]]


@pytest.fixture
def write(tmp_path, image):
    """Return `write(*shapes)`, which writes an image and its json file, and returns the latter."""

    def write(*shapes, name="a", **more):
        image(tmp_path / f"{name}.jpg")
        content = {"version": "5.4", "shapes": list(shapes), "imagePath": f"{name}.jpg", **more}
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(content))
        return file

    return write


def read(folder):
    format, sets = read_folder(folder)
    assert format == "LabelMe"
    return to_coco(sets["train"])


def test_polygons_and_rectangles(write, tmp_path):
    write(shape("dog", TRIANGLE), shape("cat", [[50, 30], [40, 20]], "rectangle"))
    write(name="b")
    content = read(tmp_path)
    assert len(content["images"]) == 2
    assert [row["name"] for row in content["categories"]] == ["cat", "dog"]
    dog, cat = content["annotations"]
    assert dog["segmentation"] == [[10, 10, 30, 10, 10, 30.5]]
    assert dog["bbox"] == [10, 10, 20, 20.5]
    assert cat["bbox"] == [40, 20, 10, 10]
    assert "segmentation" not in cat


def test_group_of_shapes_is_one_object(write, tmp_path):
    moved = [[x + 20, y] for x, y in TRIANGLE]
    parts = [shape("dog", points, group_id=3) for points in (TRIANGLE, moved)]
    write(*parts, shape("cat", TRIANGLE, group_id=3), shape("dog", TRIANGLE))
    rows = read(tmp_path)["annotations"]
    assert [len(row["segmentation"]) for row in rows] == [2, 1, 1]
    assert rows[0]["bbox"] == [10, 10, 40, 20.5]


def test_circles_and_masks(write, tmp_path):
    pixels = np.zeros((6, 8), np.uint8)
    pixels[1:5, 2:8] = 255
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    mask = base64.b64encode(buffer.getvalue()).decode()
    write(
        shape("ball", [[30, 20], [30, 30]], "circle"),
        shape("blob", [[10, 20], [17, 25]], "mask", mask=mask),
    )
    ball, blob = read(tmp_path)["annotations"]
    assert ball["bbox"] == pytest.approx([20, 10, 20, 20])
    assert ball["area"] == pytest.approx(np.pi * 100, rel=0.05)
    assert blob["bbox"] == [12, 21, 6, 4]
    bitmap = to_bitmap(blob["segmentation"], 40, 60)
    assert bitmap.sum() == blob["area"] == 24
    assert bitmap[21:25, 12:18].all()


@pytest.mark.parametrize(
    ("invalid", "problem"),
    [
        (shape("dog", TRIANGLE[:2]), r"shapes\[1\] \(dog\): a polygon of 2 points needs 3"),
        (shape("dog", TRIANGLE, "line"), "a shape of type line is not an object"),
        (shape("dog", [[1, 2, 3]]), r"points is \[\[1, 2, 3\]\], not a list of \[x, y\]"),
        (shape("dog", [[70, 1], [80, 1], [75, 9]]), "has no area inside the 60x40 image"),
        (shape("dog", [[1, 1], [2, 2]], "mask"), "its mask cannot be read"),
        ({"points": TRIANGLE}, r"shapes\[1\]: has no label"),
    ],
)
def test_invalid_shape(write, tmp_path, invalid, problem):
    file = write(shape("cat", TRIANGLE), invalid)
    with pytest.raises(DataError, match=problem) as raised:
        read_folder(tmp_path)
    assert str(raised.value).startswith(f"{file}: shapes[1]")


def test_rectangles_cannot_be_grouped(write, tmp_path):
    rectangle = shape("cat", [[1, 1], [5, 5]], "rectangle", group_id=1)
    write(rectangle, rectangle)
    with pytest.raises(DataError, match="only polygons can be"):
        read_folder(tmp_path)


def test_two_files_of_the_same_image(write, tmp_path):
    write(shape("dog", TRIANGLE)).rename(tmp_path / "first.json")
    write(shape("cat", TRIANGLE))
    with pytest.raises(DataError, match=r"a\.jpg: two files label this image"):
        read(tmp_path)


def test_invalid_files(write, tmp_path):
    file = write(shape("dog", TRIANGLE), imageWidth=10, imageHeight=40)
    with pytest.raises(DataError, match=r"a\.json: its size is 10x40 .* is 60x40"):
        read_folder(tmp_path)
    write(shape("dog", TRIANGLE), imageData="abc")
    (tmp_path / "a.jpg").unlink()
    with pytest.raises(DataError, match=r"the image in it \(imageData\) cannot be read"):
        read_folder(tmp_path)
    file.write_text(file.read_text().replace("imageData", "other"))
    with pytest.raises(DataError, match=r"its image 'a\.jpg' is not in .*--images"):
        read_folder(tmp_path)
    file.write_text('{"shapes": [],}')
    with pytest.raises(DataError, match=r"a\.json: is not JSON: .*line 1"):
        read_folder(tmp_path)


def test_labels_in_a_separate_folder(tmp_path, image):
    image(tmp_path / "photos/a.jpg")
    content = {"shapes": [shape("dog", TRIANGLE)], "imagePath": "..\\photos\\a.jpg"}
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels/a.json").write_text(json.dumps(content))
    _, sets = read_folder(tmp_path / "labels")
    assert sets["train"].images[0].file == tmp_path / "photos/a.jpg"
