"""LabelMe's json files."""

from __future__ import annotations

import base64
import io
import json

import numpy as np
import pytest
from PIL import Image

from detlite.apps.dataset_formats.detect_format import read_set
from detlite.apps.dataset_formats.labeled_dataset import coco_content
from detlite.data.errors import DataError
from detlite.structures.masks.formats import to_bitmap


def shape(label, points, kind="polygon", **more):
    return {"label": label, "points": points, "shape_type": kind, "group_id": None, **more}


TRIANGLE = [[10, 10], [30, 10], [10, 30.5]]


@pytest.fixture
def write(tmp_path, picture):
    """`write(*shapes)`: one picture and its json; returns the file."""

    def labelled(*shapes, name="a", **more):
        picture(tmp_path / f"{name}.jpg")
        content = {"version": "5.4", "shapes": list(shapes), "imagePath": f"{name}.jpg", **more}
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(content))
        return file

    return labelled


def read(folder):
    form, sets = read_set(folder)
    assert form == "LabelMe"
    return coco_content(sets["train"])


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


def test_shapes_of_a_group_are_one_object(write, tmp_path):
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
    ("one", "problem"),
    [
        (shape("dog", TRIANGLE[:2]), r"shapes\[1\] \(dog\): a polygon of 2 points: 3 are needed"),
        (shape("dog", TRIANGLE, "line"), "is a line, which is no object"),
        (shape("dog", [[1, 2, 3]]), r"points is \[\[1, 2, 3\]\], not a list of \[x, y\]"),
        (shape("dog", [[70, 1], [80, 1], [75, 9]]), "has no area inside the 60x40 picture"),
        (shape("dog", [[1, 1], [2, 2]], "mask"), "its mask cannot be read"),
        ({"points": TRIANGLE}, r"shapes\[1\]: has no label"),
    ],
)
def test_bad_shape_is_named(write, tmp_path, one, problem):
    file = write(shape("cat", TRIANGLE), one)
    with pytest.raises(DataError, match=problem) as raised:
        read_set(tmp_path)
    assert str(raised.value).startswith(f"{file}: shapes[1]")


def test_rectangles_are_no_parts(write, tmp_path):
    rectangle = shape("cat", [[1, 1], [5, 5]], "rectangle", group_id=1)
    write(rectangle, rectangle)
    with pytest.raises(DataError, match="only polygons can be parts"):
        read_set(tmp_path)


def test_two_files_of_one_picture_are_named(write, tmp_path):
    write(shape("dog", TRIANGLE)).rename(tmp_path / "first.json")
    write(shape("cat", TRIANGLE))
    with pytest.raises(DataError, match=r"a\.jpg: two files have labels of this picture"):
        read(tmp_path)


def test_bad_files_are_named(write, tmp_path):
    file = write(shape("dog", TRIANGLE), imageWidth=10, imageHeight=40)
    with pytest.raises(DataError, match=r"a\.json: states 10x40 .* is 60x40"):
        read_set(tmp_path)
    write(shape("dog", TRIANGLE), imageData="abc")
    (tmp_path / "a.jpg").unlink()
    with pytest.raises(DataError, match=r"names the picture 'a\.jpg', .*imageData, which is not"):
        read_set(tmp_path)
    file.write_text('{"shapes": [],}')
    with pytest.raises(DataError, match=r"a\.json: is not JSON: .*line 1"):
        read_set(tmp_path)


def test_labels_in_a_folder_of_their_own(tmp_path, picture):
    picture(tmp_path / "photos/a.jpg")
    content = {"shapes": [shape("dog", TRIANGLE)], "imagePath": "..\\photos\\a.jpg"}
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels/a.json").write_text(json.dumps(content))
    _, sets = read_set(tmp_path / "labels")
    assert sets["train"].pictures[0].file == tmp_path / "photos/a.jpg"
