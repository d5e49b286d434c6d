"""PASCAL VOC average precision of cases that are computed by hand."""

import numpy as np
import pytest
from pycocotools.coco import COCO

from detlite.evaluation import Results
from detlite.evaluation.voc import area_under_curve, eleven_point_mean, evaluate_voc
from tests.builders import coco_content, coco_detection, coco_object, make_coco

NAMES = {3: "cat", 5: "dog", 8: "cow"}


def ground_truth(*rows) -> COCO:
    """Make objects (image, category, difficult, x, y, w, h)."""
    objects = [
        coco_object(box, category, image, iscrowd=difficult)
        for image, category, difficult, *box in rows
    ]
    return make_coco(coco_content(objects, range(10), (99, 99), NAMES))


def detections(*rows):
    """Make detections (image, category, score, x, y, w, h)."""
    return [coco_detection(box, score, category, image) for image, category, score, *box in rows]


def measure(truth: COCO, rows: list[dict]) -> dict:
    return evaluate_voc(truth, Results.from_coco(rows))


ONE = (0, 3, 0, 10, 10, 20, 20)


def test_perfect_detections():
    truth = ground_truth(ONE, (1, 5, 0, 0, 0, 8, 8))
    results = detections((0, 3, 0.9, 10, 10, 20, 20), (1, 5, 0.2, 0, 0, 8, 8))
    assert measure(truth, results) == {
        "AP50": 1.0, "AP50_07": 1.0, "per_category": {"cat": 1.0, "dog": 1.0, "cow": None},
    }  # fmt: skip


@pytest.mark.parametrize(("width", "ap"), [(10, 1.0), (9.9, 0.0), (40, 1.0), (40.1, 0.0)])
def test_iou_of_half_is_enough(width, ap):
    metrics = measure(ground_truth(ONE), detections((0, 3, 0.9, 10, 10, width, 20)))
    assert metrics["AP50"] == ap


def test_difficult_objects_are_ignored():
    truth = ground_truth(ONE, (0, 3, 1, 50, 50, 20, 20), (2, 5, 1, 0, 0, 9, 9))
    results = detections((0, 3, 0.9, 50, 50, 20, 20), (0, 3, 0.8, 50, 50, 20, 20))
    results += detections((0, 3, 0.7, 10, 10, 20, 20))
    assert measure(truth, results)["per_category"] == {"cat": 1.0, "dog": None, "cow": None}


def test_no_detections_and_no_objects():
    assert measure(ground_truth(ONE), [])["AP50"] == 0.0
    nothing = measure(ground_truth(), detections((0, 3, 0.9, 0, 0, 1, 1)))
    assert (nothing["AP50"], nothing["AP50_07"]) == (None, None)


def test_curves_by_hand():
    recall, precision = np.array([0.2, 0.2, 0.4]), np.array([1.0, 0.5, 2 / 3])
    assert area_under_curve(recall, precision) == pytest.approx(0.2 * 1 + 0.2 * 2 / 3)
    assert eleven_point_mean(recall, precision) == pytest.approx((3 * 1 + 2 * 2 / 3) / 11)
    three_tenths = np.cumsum([0.1, 0.1, 0.1])  # ends in 0.30000000000000004
    assert eleven_point_mean(three_tenths, np.ones(3)) == pytest.approx(4 / 11)


OTHER = (0, 3, 0, 50, 50, 20, 20)
LARGER = (0, 3, 0, 10, 10, 20, 30)
# Objects, detections, and the AP of cats.
CURVES = {
    # (recall, precision): (1/2, 1), (1/2, 1/2), (1, 2/3)
    "a second detection of an object": (
        [ONE, OTHER],
        [(0, 3, 0.8, *ONE[3:]), (0, 3, 0.7, *OTHER[3:]), (0, 3, 0.9, *ONE[3:])],
        0.5 + 0.5 * 2 / 3,
    ),
    "only the most overlapped object": (
        [ONE, LARGER], [(0, 3, 0.9, *ONE[3:]), (0, 3, 0.8, *ONE[3:])], 0.5,
    ),
    "on an object of another category": (
        [ONE, (0, 5, 0, 50, 50, 20, 20)],
        [(0, 3, 0.9, *OTHER[3:]), (0, 3, 0.8, *ONE[3:])],
        0.5,
    ),
    "on a quarter of a difficult object": (
        [ONE, (0, 3, 1, 50, 50, 20, 20)],
        [(0, 3, 0.9, 50, 50, 10, 10), (0, 3, 0.8, *ONE[3:])],
        0.5,
    ),
    "another image": ([ONE], [(1, 3, 0.9, *ONE[3:]), (0, 3, 0.8, *ONE[3:])], 0.5),
    "a later hit raises the precision before": (
        [ONE, OTHER],
        [(1, 3, 0.9, *ONE[3:]), (0, 3, 0.8, *ONE[3:]), (0, 3, 0.7, *OTHER[3:])],
        2 / 3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CURVES)
def test_precision_and_recall(case):
    objects, rows, expected = CURVES[case]
    metrics = measure(ground_truth(*objects), detections(*rows))
    assert metrics["per_category"]["cat"] == pytest.approx(expected)
