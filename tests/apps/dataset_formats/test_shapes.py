"""Test turning the shapes of annotation tools into objects."""

import base64
import tracemalloc
import zlib

import numpy as np
import pytest

from detlite.apps.dataset_formats.file_tree import FileTree
from detlite.apps.dataset_formats.labeled_dataset import Conversion
from detlite.apps.dataset_formats.shapes import (
    ImageLabels,
    MaskLimit,
    Shape,
    read_shape,
    read_shapes,
    to_objects,
)
from detlite.files.errors import DataError
from detlite.structures.masks.formats import to_bitmap

SIZE = (40, 60)


def convert(*shapes):
    conversion = Conversion()
    objects = to_objects(shapes, SIZE, "a.png", conversion)
    return objects, conversion


def test_holes_are_not_part_of_the_mask():
    square, hole = [10, 10, 30, 10, 30, 30, 10, 30], [15, 15, 20, 15, 20, 20, 15, 20]
    (obj,), _ = convert(Shape("ring", square, holes=[hole]))
    mask = to_bitmap(obj.segmentation, *SIZE)
    assert mask.sum() == 20 * 20 - 5 * 5
    assert not mask[15:20, 15:20].any()
    assert obj.box == (10, 10, 20, 20)


def test_boxes_and_ellipses_are_rotated_clockwise():
    (box,), _ = convert(Shape.box("a", (30, 10, 10, 4), degrees=90))
    assert box.box == pytest.approx((26, 10, 4, 10))
    (ellipse,), _ = convert(Shape.ellipse("a", (30, 20), (10, 2), degrees=90))
    assert ellipse.box == pytest.approx((28, 10, 4, 20), abs=0.1)


def test_masks_at_a_position():
    mask = np.array([[0, 1, 1], [1, 1, 0]], bool)
    (obj,), _ = convert(Shape("a", mask=mask, origin=(5, 7)))
    assert obj.box == (5, 7, 3, 2)
    assert (to_bitmap(obj.segmentation, *SIZE)[7:9, 5:8] == mask).all()
    _, conversion = convert(Shape("a", mask=mask, origin=(58, 7)))
    with pytest.raises(DataError, match=r"a\.png: object 1 \(a\): its mask extends beyond"):
        conversion.finish()


def test_all_bad_labels_are_reported():
    good = Shape.box("a", (1, 1, 5, 5))
    bad = [Shape("a", [1, 1, 2, 2]), Shape("b", problem="is a line"), Shape.box("a", (70, 1, 2, 2))]
    bad.append(Shape("c", [1, 1, float("nan"), 2, 3, 3]))
    _, conversion = convert(*bad[:2], good, *bad[2:])
    with pytest.raises(DataError) as raised:
        conversion.finish()
    message = str(raised.value)
    for part in (
        "object 1 (a): segmentation has a polygon of 4 numbers", "object 2 (b): is a line",
        "object 4 (a): the object has no area", "not a list of finite numbers",
        "(4 bad labels)", "--skip-bad",
    ):  # fmt: skip
        assert part in message


def test_shapes_that_exceed_the_image_are_reported():
    """Corners outside stay, because moving them would change the part inside."""
    conversion = Conversion()
    near, far = [1.0, 1.0, 61.0, 1.0, 61.0, 9.0], [50.0, 5.0, 90.0, 5.0, 50.0, 30.0]
    shapes = [Shape("a", near), Shape("a", near), Shape("a", far), Shape("a", far)]
    objects = to_objects(shapes, (40, 60), "a.xml", conversion)
    assert objects[2].segmentation == [far]
    assert objects[2].box == (50, 5, 10, 25)
    (finding,) = conversion.finish()
    assert (finding.what, finding.count, finding.example) == (
        "boxes that exceed their image", 2, "a.xml: object 3 (a)",
    )  # fmt: skip
    to_objects(shapes[2:], (40, 60), "b.xml", conversion)
    with pytest.raises(DataError, match=r"^a\.xml: object 3 \(a\): 4 of 6 objects exceed their"):
        conversion.finish()


def test_skipped_labels_with_a_known_position_are_ignored_regions():
    conversion = Conversion(skip_bad=True)
    no_label = Shape.box("", (2, 3, 10, 10))
    no_label.problem = "the region has no label"
    shapes = [
        Shape("a", [1, 1, 5, 9]),
        Shape("road", [50, 30, 80, 30, 70, 35], problem="is a line"),
        Shape("a", mask=np.ones((4, 6), bool), origin=(58, 7)),
        no_label,
        Shape.box("a", (70, 1, 2, 2)),
        Shape("a", [1, 1, float("nan"), 2, 3, 3]),
        Shape("a", problem="needs a box"),
    ]
    objects = to_objects(shapes, SIZE, "a.png", conversion)
    assert [(one.category, one.box) for one in objects if one.ignored] == [
        ("a", (1, 1, 4, 8)), ("road", (50, 30, 10, 5)), ("a", (58, 7, 2, 4)), ("", (2, 3, 10, 10)),
    ]  # fmt: skip
    assert len(objects) == 4
    regions, background = conversion.finish()
    assert (regions.what, regions.count) == ("bad labels", 4)
    assert regions.effect.startswith("They become ignored regions")
    assert (background.what, background.count) == ("bad labels", 3)
    assert background.effect.endswith("the objects count as background.")


def test_incomplete_files_are_bad_labels(tmp_path, text):
    text(tmp_path / "a.json", "{}")
    conversion = Conversion()

    def labels_of(file, tree, conversion):
        yield {}["images"]

    read_shapes(labels_of, ".json", FileTree(tmp_path), conversion)
    with pytest.raises(DataError, match=r"a\.json: is not complete .*images.*export it again"):
        conversion.finish()


def test_values_of_wrong_types_are_bad_labels(tmp_path, image, text):
    image(tmp_path / "a.png")
    text(tmp_path / "a.json", "{}")
    conversion = Conversion()

    def labels_of(file, tree, conversion):
        yield ImageLabels("a.png", [Shape.box(7, (1, 1, 5, 5)), Shape.box(None, (1, 1, 5, 5))])
        yield ImageLabels("a.png", [Shape("a", [[1], 1, 5, 1, 5, 5])])

    dataset = read_shapes(labels_of, ".json", FileTree(tmp_path), conversion)
    assert [one.category for one in dataset.images[0].objects] == ["7", ""]
    first, second = conversion.bad
    assert "object 2: has no label" in first
    assert "is not complete (TypeError" in second


def test_compressed_masks_are_limited():
    data = zlib.compress(bytes(1 << 28), 1)
    tracemalloc.start()
    shape = Shape.png("a", base64.b64encode(data), (0, 0), MaskLimit(), compressed=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "its mask cannot be read" in shape.problem
    assert peak < 200 << 20


def test_reasons_of_bad_shapes():
    def read(category, error):
        raise error

    assert read_shape(read, "a", DataError("its mask is empty")).problem == "its mask is empty"
    assert "KeyError('x')): export it again" in read_shape(read, "a", KeyError("x")).problem
    assert "must be numbers" in read_shape(lambda name: Shape(name, ["1", "2"]), "a").problem
    with pytest.raises(OSError, match="disk"):
        read_shape(read, "a", OSError("disk"))
