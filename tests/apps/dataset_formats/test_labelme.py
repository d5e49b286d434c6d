"""Test reading LabelMe's json files."""

import base64
import io
import json

import numpy as np
import pytest
from PIL import Image

from detlite.apps.dataset_formats.labeled_dataset import to_coco
from detlite.structures.masks.formats import to_bitmap
from tests.apps.dataset_formats.reading import check_refused, read_as, read_set

TRIANGLE = [[10, 10], [30, 10], [10, 30.5]]


def shape(label, points, kind="polygon", **more):
    return {"label": label, "points": points, "shape_type": kind, "group_id": None, **more}


def mask(pixels):
    """Return a mask as LabelMe writes it."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


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


@pytest.fixture
def read(write, tmp_path):
    """Return `read(*shapes)`, which writes and reads a file, and returns the content for COCO."""

    def read(*shapes, **more):
        write(*shapes, **more)
        return to_coco(read_as("LabelMe", tmp_path)["train"])

    return read


def test_polygons_and_rectangles(read, write):
    write(name="b")
    content = read(shape("dog", TRIANGLE), shape("cat", [[50, 30], [40, 20]], "rectangle"))
    assert len(content["images"]) == 2
    assert [row["name"] for row in content["categories"]] == ["cat", "dog"]
    dog, cat = content["annotations"]
    assert dog["segmentation"] == [[10, 10, 30, 10, 10, 30.5]]
    assert (dog["bbox"], cat["bbox"]) == ([10, 10, 20, 20.5], [40, 20, 10, 10])
    assert "segmentation" not in cat


def test_group_of_shapes_is_one_object(read):
    moved = [[x + 20, y - 15] for x, y in TRIANGLE]  # in part above the image
    parts = [shape("dog", points, group_id=3) for points in (TRIANGLE, moved)]
    content = read(*parts, shape("cat", TRIANGLE, group_id=3), shape("dog", TRIANGLE))
    rows = content["annotations"]
    assert [len(row["segmentation"]) for row in rows] == [2, 1, 1]
    assert rows[0]["bbox"] == [10, 0, 40, 30.5]


def test_parts_of_objects_and_other_images_are_reported(write, tmp_path, image):
    write(*(shape("dog", TRIANGLE, group_id=0) for _ in range(3)), imagePath="b.jpg")
    image(tmp_path / "b.jpg")
    named, parts, unlabeled = read_set(tmp_path).findings
    assert (parts.what, parts.count, parts.entry) == ("parts of objects", 2, "shape")
    assert named.what == "label files with the name of another image"
    assert "b.jpg" in named.example
    assert (unlabeled.what, unlabeled.count) == ("images without labels", 1)


def test_circles_and_masks(read):
    pixels = np.zeros((6, 8), np.uint8)
    pixels[1:5, 2:8] = 255
    content = read(
        shape("ball", [[30, 20], [30, 30]], "circle"),
        shape("blob", [[10, 20], [17, 25]], "mask", mask=mask(pixels)),
    )
    ball, blob = content["annotations"]
    assert ball["bbox"] == pytest.approx([20, 10, 20, 20])
    assert ball["area"] == pytest.approx(np.pi * 100, rel=0.05)
    assert blob["bbox"] == [12, 21, 6, 4]
    bitmap = to_bitmap(blob["segmentation"], 40, 60)
    assert bitmap.sum() == blob["area"] == 24
    assert bitmap[21:25, 12:18].all()


def test_the_masks_of_an_image_are_bounded_together(read, tmp_path, monkeypatch):
    text = mask(np.full((6, 8), 255, np.uint8))
    content = read(*(shape("a", [[1, 2], [8, 7]], "mask", mask=text) for _ in range(3)))
    assert len(content["annotations"]) == 3
    monkeypatch.setattr("detlite.apps.dataset_formats.labelme._MAX_MASKS", 100)
    check_refused(tmp_path, r"shapes\[2\] \(a\): .* too many pixels: draw polygons")


BOX = shape("cat", [[1, 1], [5, 5]], "rectangle", group_id=1)


@pytest.mark.parametrize(
    ("invalid", "problem"),
    [
        (shape("dog", TRIANGLE[:2]), r"shapes\[1\] \(dog\): a polygon of 2 points needs 3"),
        (shape("dog", TRIANGLE, "line"), "a shape of type line is not an object"),
        (shape("dog", [[1, 2, 3]]), r"points is \[\[1, 2, 3\]\], not a list of \[x, y\]"),
        (shape("dog", [[70, 1], [80, 1], [75, 9]]), "is outside the 60x40 image"),
        (shape("dog", [[1, 1], [2, 2]], "mask"), "its mask cannot be read"),
        (BOX, r"shapes\[1\] \(cat\): is in a group .*only polygons can be"),
        (shape("tip", [[7, 8]], "point"), r"shapes\[1\] \(tip\): a point is a keypoint if"),
        ({"points": TRIANGLE}, r"shapes\[1\]: has no label"),
        ({"points": TRIANGLE, "label": ["cat"]}, r"shapes\[1\]: has no label"),
        (None, r"shapes\[1\]: points is None, not a list"),
    ],
)
def test_invalid_shape(write, tmp_path, invalid, problem):
    check_refused(tmp_path, problem, write(BOX, invalid))


def test_labels_that_are_numbers_and_rotated_rectangles(read):
    """X-AnyLabeling and LabelMe write rotated rectangles as four points."""
    corners = [[10, 10], [20, 15], [18, 19], [8, 14]]
    kinds = ("rotation", "oriented_rectangle")
    content = read(shape(3, TRIANGLE), *(shape("car", corners, kind) for kind in kinds))
    assert [row["name"] for row in content["categories"]] == ["3", "car"]
    assert [row["bbox"] for row in content["annotations"][1:]] == [[8, 10, 12, 9]] * 2


@pytest.mark.parametrize("split", ["", "val"])  # without train, they are divided again
def test_two_files_of_the_same_image(write, tmp_path, split):
    (tmp_path / split).mkdir(exist_ok=True)
    other = write(shape("dog", TRIANGLE), imagePath=f"{tmp_path}/a.jpg")
    other.rename(tmp_path / split / "first.json")
    write(shape("cat", TRIANGLE))
    check_refused(tmp_path, r"a\.jpg: two files or entries label this image")
    dataset = read_set(tmp_path, skip_bad=True)
    assert [one.category for image in dataset.images for one in image.objects] == ["cat"]
    assert "The first one is used." in str(next(iter(dataset.findings)))


def test_invalid_files(write, tmp_path):
    write(shape("dog", TRIANGLE), imageWidth="60", imageHeight=40.0)
    assert len(read_set(tmp_path).images) == 1
    file = write(shape("dog", TRIANGLE), imageWidth=10, imageHeight=40)
    check_refused(tmp_path, r"its size is 10x40 .* is 60x40", file)
    (tmp_path / "a.jpg").unlink()
    check_refused(tmp_path, r"its image 'a\.jpg' is not in .*--images", file)
    file.write_text('{"shapes": [],}')
    check_refused(tmp_path, "cannot be read as JSON: .*line 1", file)


def test_ignored_regions_are_crowds_of_every_category(read):
    ignored = [[40, 20], [55, 20], [55, 35]]
    shapes = [shape("dog", TRIANGLE), shape("__ignore__", ignored)]
    content = read(*shapes, shape("_background_", ignored), shape("cat", TRIANGLE))
    assert [row["name"] for row in content["categories"]] == ["cat", "dog"]
    crowds = [row for row in content["annotations"] if row["iscrowd"]]
    box = [40, 20, 15, 15]
    assert [(row["category_id"], row["bbox"]) for row in crowds] == [(1, box), (2, box)]
    assert [row["count"] for row in content["findings"]] == [1, 1]


def test_keypoints_in_groups(read):
    box = shape("hand", [[5, 5], [25, 25]], "rectangle", group_id=1)
    tip = shape("tip", [[7, 8]], "point", group_id=1)
    content = read(tip, box, shape("hand palm", [[20, 21]], "point", group_id=1))
    assert content["categories"][0]["keypoints"] == ["tip", "palm"]
    assert content["annotations"][0]["keypoints"] == [7, 8, 2, 20, 21, 2]
