"""Test turning the shapes of label files into objects."""

import numpy as np
import pytest

from detlite.apps.dataset_formats.labeled_dataset import Conversion
from detlite.apps.dataset_formats.shapes import Shape, rotated_box, to_objects
from detlite.files.errors import DataError
from detlite.structures.masks.formats import to_bitmap

SIZE = (40, 60)


def box(category, x, y, w, h):
    return Shape(category, [x, y, x + w, y + h], polygon=False)


def convert(*shapes):
    conversion = Conversion()
    objects = to_objects(shapes, SIZE, "a.png", conversion)
    return objects, conversion


def test_boxes_are_rotated_clockwise():
    assert rotated_box((25, 5, 10, 4), 90) == pytest.approx([32, 2, 32, 12, 28, 12, 28, 2])


def test_masks_at_a_position():
    mask = np.array([[0, 1, 1], [1, 1, 0]], bool)
    (obj,), _ = convert(Shape("a", mask=mask, origin=(5, 7)))
    assert obj.box == (5, 7, 3, 2)
    assert (to_bitmap(obj.segmentation, *SIZE)[7:9, 5:8] == mask).all()
    _, conversion = convert(Shape("a", mask=mask, origin=(58, 7)))
    with pytest.raises(DataError, match=r"a\.png: object 1 \(a\): its mask extends beyond"):
        conversion.finish()


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


def test_bad_labels_are_refused_together_or_become_ignored_regions():
    no_label = box("", 2, 3, 10, 10)
    no_label.problem = "the region has no label"
    shapes = [
        Shape("a", [1, 1, 5, 9]),
        Shape("road", [50, 30, 80, 30, 70, 35], problem="is a line"),
        Shape("a", mask=np.ones((4, 6), bool), origin=(58, 7)),
        no_label,
        box("a", 70, 1, 2, 2),
        Shape("a", [1, 1, float("nan"), 2, 3, 3]),
        Shape("a", problem="needs a box"),
    ]
    _, conversion = convert(*shapes)
    with pytest.raises(DataError) as raised:
        conversion.finish()
    for part in (
        "object 1 (a): segmentation [[", "object 2 (road): is a line", "(7 bad labels)",
        "object 5 (a): bbox [70, 1, 2, 2] is outside the 60x40 image", "--skip-bad",
    ):  # fmt: skip
        assert part in str(raised.value)
    conversion = Conversion(skip_bad=True)
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
