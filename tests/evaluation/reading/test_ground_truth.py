"""The ground truth as arrays: the masks of pycocotools, and errors that name the annotation."""

from typing import Any

import numpy as np
import pytest
from pycocotools import mask as rle_codec
from pycocotools.coco import COCO

from detlite.evaluation.coco import evaluate_coco
from detlite.evaluation.reading.ground_truth import read_ground_truth
from detlite.evaluation.results import Results
from detlite.files.errors import DataError
from tests.builders import coco_content, coco_object, make_coco

SIZE = (20, 30)
SQUARE = [2.0, 2, 12, 2, 12, 12, 2, 12]


def ground_truth(*segmentations: Any, **fields: Any) -> COCO:
    """Make a ground truth of one image with these masks; their ids are 1, 2, ..."""
    box = [2, 2, 10, 10]
    objects = [coco_object(box, 3, 7, **{"segmentation": mask, **fields}) for mask in segmentations]
    return make_coco(coco_content(objects, [7], SIZE, {3: "cell"}))


def test_masks_are_those_of_pycocotools():
    bitmap = np.zeros(SIZE, np.uint8, order="F")
    bitmap[3:9, 4:20] = 1
    compressed = rle_codec.encode(bitmap)
    text = {"size": list(SIZE), "counts": compressed["counts"].decode()}
    counts = {"size": list(SIZE), "counts": [83, 6, *[14, 6] * 15, 211]}
    rings = [SQUARE, [x + 5.5 for x in SQUARE]]
    coco = ground_truth([SQUARE], text, rings, compressed, counts)
    truth = read_ground_truth(coco, "segm")
    assert truth.masks is not None
    expected = [coco.annToMask(row).sum() for row in coco.dataset["annotations"]]
    actual = [int(rle_codec.area(rle)) for rle in truth.masks.rles()]
    assert actual == expected
    assert expected[1] == 96


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([[1.0, 1, 9, 9]], "annotation 2: segmentation has a polygon of 4 numbers"),
        ([[]], "annotation 2: segmentation has a polygon of 0 numbers"),
        ([[1.0, 1, 9, 1, 9, 9, 1]], "annotation 2: segmentation has a polygon of 7 numbers"),
        ([[1.0, 1, 9, 1, 9, "a"]], "annotation 2: .* not a list of finite numbers"),
        ([[1.0, 1, 9, 1, 9, float("nan")]], "annotation 2: .* not a list of finite numbers"),
        (SQUARE, "annotation 2: segmentation belongs to polygons as pairs"),
        ({"counts": "abc"}, "annotation 2: segmentation has size None"),
        ({"size": [20, 30], "counts": [1.5, 3]}, "annotation 2: .* not run lengths"),
        ({"size": [20, 30], "counts": None}, "annotation 2: .* not run lengths"),
        ("mask.png", "annotation 2: segmentation is .*, not polygons or RLE"),
        ({"size": [30, 20], "counts": "X1"}, r"annotation 2: the mask has the size \[30, 20\]"),
    ],
)
def test_invalid_masks_are_named(mask, message):
    with pytest.raises(DataError, match=f"ground truth: {message}"):
        read_ground_truth(ground_truth([SQUARE], mask), "segm")


def test_missing_fields_do_not_change_the_ground_truth():
    coco = ground_truth([SQUARE])
    (row,) = coco.dataset["annotations"]
    del row["area"], row["iscrowd"]
    truth = read_ground_truth(coco, "bbox")
    assert (truth.areas.tolist(), truth.crowd.tolist()) == ([100.0], [False])
    assert "area" not in row


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("image_id", None, "image_id None is unknown"),
        ("image_id", 7.5, r"image_id is 7\.5"),
        ("category_id", [3], r"category_id is \[3\]"),
        ("iscrowd", ["yes"], r"iscrowd is \['yes'\]"),
        ("area", "large", "area is 'large'"),
        ("bbox", [1, 2, 3], r"bbox is \[1, 2, 3\]"),
        ("bbox", [1, 2, np.nan, 4], r"bbox is \[1, 2, nan, 4\]"),
        ("bbox", [1, 2, 1e300, 1e300], r"bbox is \[1, 2, 1e\+300, 1e\+300\]"),
        ("area", np.inf, "area is inf"),
    ],
)
def test_values_of_other_types_are_named(field, value, message):
    coco = ground_truth([SQUARE], [SQUARE])
    coco.imgs[0] = coco.imgs[7] | {"id": 0}
    coco.dataset["annotations"][1][field] = value
    with pytest.raises(DataError, match=f"ground truth: annotation 2: {message}"):
        read_ground_truth(coco, "bbox")


def test_ids_may_be_written_as_fractions():
    coco = ground_truth([SQUARE])
    coco.dataset["annotations"][0] |= {"image_id": 7.0, "category_id": 3.0, "id": 0}
    truth = read_ground_truth(coco, "segm")
    assert (truth.images.tolist(), truth.categories.tolist(), truth.ids.tolist()) == ([0], [0], [1])


def test_objects_without_keypoints_may_be_missed():
    points = [5, 5, 2, 9, 9, 1]
    coco = ground_truth(None, None, None, None, keypoints=points)
    rows = coco.dataset["annotations"]
    rows[1] |= {"keypoints": [0] * 6, "num_keypoints": 0}
    rows[2] |= {"keypoints": [], "num_keypoints": None}
    del rows[3]["keypoints"]
    truth = read_ground_truth(coco, "keypoints")
    assert truth.ignored.tolist() == [False, True, True, True]
    assert truth.keypoints is not None
    assert truth.keypoints[0].flatten().tolist() == points
    assert not truth.keypoints[1:].any()
    rows[3]["keypoints"] = [1, 2, 3]
    with pytest.raises(DataError, match="annotation 4 has 3 numbers as keypoints, not x, y and"):
        read_ground_truth(coco, "keypoints")
    coco.dataset["annotations"] = [row | {"keypoints": [1, 2]} for row in rows]
    with pytest.raises(DataError, match="annotation 1 has 2 numbers as keypoints"):
        read_ground_truth(coco, "keypoints")
    for unlabeled in ([row | {"keypoints": []} for row in rows], []):
        coco.dataset["annotations"] = unlabeled
        truth = read_ground_truth(coco, "keypoints")
        assert truth.keypoints is not None
        assert truth.keypoints.shape == (len(unlabeled), 0, 3)
        assert truth.ignored.all()


def test_masks_and_their_areas_need_the_size_of_their_image():
    coco = ground_truth([SQUARE])
    coco.dataset["images"][0]["height"] = None
    for kind in ("segm", "bbox"):
        with pytest.raises(DataError, match=r"image 7 has the size \[None, 30\]"):
            read_ground_truth(coco, kind)
        coco.dataset["annotations"][0]["area"] = None


@pytest.mark.parametrize("number", [None, float("nan"), "a"])
@pytest.mark.parametrize("ids", ["imgs", "cats"])
def test_ids_must_be_integers(ids, number):
    coco = ground_truth([SQUARE])
    getattr(coco, ids)[number] = {"id": number}
    with pytest.raises(DataError, match=r"ground truth: id .* is not an integer"):
        evaluate_coco(coco, Results.from_coco([], ["bbox"]), ["bbox"])
