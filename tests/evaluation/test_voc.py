"""PASCAL VOC average precision: simple cases, and a slow implementation of its definition."""

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


def slow_voc(truth: COCO, results: list[dict], category: int) -> tuple[float, float]:
    """Compute AP by the definition, with boxes in whole pixels that include the last one."""
    objects = [row for row in truth.dataset["annotations"] if row["category_id"] == category]
    positives = len([row for row in objects if not row["iscrowd"]])
    ranked = sorted((r for r in results if r["category_id"] == category), key=lambda r: -r["score"])
    used, curve = [], []
    hits = errors = 0
    for result in ranked:
        best, best_iou = None, -1.0
        for row in objects:
            if row["image_id"] != result["image_id"]:
                continue
            corners = [
                (box[0] + 1, box[1] + 1, box[0] + box[2], box[1] + box[3])
                for box in (row["bbox"], result["bbox"])
            ]
            width = min(c[2] for c in corners) - max(c[0] for c in corners) + 1
            height = min(c[3] for c in corners) - max(c[1] for c in corners) + 1
            shared = max(width, 0) * max(height, 0)
            sizes = [(c[2] - c[0] + 1) * (c[3] - c[1] + 1) for c in corners]
            iou = shared / (sum(sizes) - shared)
            if iou > best_iou:
                best, best_iou = row, iou
        if best_iou >= 0.5:
            if best["iscrowd"]:
                continue
            if best["id"] in used:
                errors += 1
            else:
                used.append(best["id"])
                hits += 1
        else:
            errors += 1
        curve.append((hits / positives, hits / (hits + errors)))
    area, before = 0.0, 0.0
    for recall in sorted({r for r, _ in curve}):
        area += (recall - before) * max(p for r, p in curve if r >= recall)
        before = recall
    points = [max((p for r, p in curve if r >= t / 10 - 1e-9), default=0.0) for t in range(11)]
    return area, sum(points) / 11


@pytest.mark.parametrize("seed", range(4))
def test_agrees_with_the_definition(seed):
    rng = np.random.default_rng(seed)
    rows = [
        (int(rng.integers(6)), int(rng.choice([3, 5])), int(rng.random() < 0.2),
         *rng.integers(0, 40, 2).tolist(), *rng.integers(5, 40, 2).tolist())
        for _ in range(30)
    ]  # fmt: skip
    truth = ground_truth(*rows)
    results = []
    for image, category, _, x, y, w, h in rows * 2:
        x, y = x + int(rng.integers(-4, 5)), y + int(rng.integers(-4, 5))
        results.append((image, category, float(rng.random()), x, y, w, h))
    results = detections(*results)
    metrics = measure(truth, results)
    slow = {NAMES[number]: slow_voc(truth, results, number) for number in (3, 5)}
    for name, (area, _) in slow.items():
        assert metrics["per_category"][name] == pytest.approx(area)
        assert 0.05 < area < 0.95
    assert metrics["AP50_07"] == pytest.approx(np.mean([eleven for _, eleven in slow.values()]))
