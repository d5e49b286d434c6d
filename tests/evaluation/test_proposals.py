"""Average recall of proposals: simple cases, and pycocotools where both rules agree."""

import contextlib
import io

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from detlite.evaluation import Results
from detlite.evaluation.proposals import evaluate_proposals
from tests.builders import coco_content, coco_detection, coco_object, make_coco


def ground_truth(*boxes, images: int = 1, crowd: tuple[int, ...] = ()) -> COCO:
    """Make objects (image, x, y, w, h); `crowd` has the indices of crowds."""
    objects = [
        coco_object(box, 1 + n % 2, image, iscrowd=int(n in crowd))
        for n, (image, *box) in enumerate(boxes)
    ]
    return make_coco(coco_content(objects, range(images), (500, 500)))


def proposals(*boxes):
    """Make proposals (image, x, y, w, h) with decreasing scores."""
    return [coco_detection(box, 1 - n / 1e4, 1, image) for n, (image, *box) in enumerate(boxes)]


def measure(truth: COCO, rows: list[dict]) -> dict:
    return evaluate_proposals(truth, Results.from_coco(rows))


def test_exact_boxes_are_all_recalled():
    truth = [(0, 10, 10, 20, 20), (0, 100, 100, 50, 50), (1, 0, 0, 200, 200)]
    metrics = measure(ground_truth(*truth, images=2), proposals(*truth))
    names = [f"AR{letter}@{limit}" for limit in (100, 1000) for letter in ("", "s", "m", "l")]
    assert metrics == dict.fromkeys(names, 1.0)


@pytest.mark.parametrize(
    ("width", "recall"), [(100, 1.0), (72, 0.5), (66, 0.4), (49, 0.0), (0.001, 0.0)]
)
def test_recall_is_the_fraction_of_passed_thresholds(width, recall):
    metrics = measure(ground_truth((0, 0, 0, 100, 100)), proposals((0, 0, 0, width, 100)))
    assert metrics["AR@100"] == pytest.approx(recall)


def test_one_proposal_matches_one_object():
    truth = ground_truth((0, 0, 0, 100, 100), (0, 0, 0, 100, 80))
    assert measure(truth, proposals((0, 0, 0, 100, 100)))["AR@100"] == 0.5
    both = proposals((0, 0, 0, 100, 100), (0, 0, 0, 100, 85))
    assert measure(truth, both)["AR@100"] == pytest.approx((1 + 0.9) / 2)


def test_only_the_highest_scores_count():
    results = proposals(*[(0, 300, 300, 5, 5)] * 100, (0, 0, 0, 100, 100))
    metrics = measure(ground_truth((0, 0, 0, 100, 100)), results[::-1])
    assert (metrics["AR@100"], metrics["AR@1000"]) == (0.0, 1.0)


def test_no_objects_and_no_proposals():
    truth = ground_truth((0, 0, 0, 10, 10), (0, 0, 0, 100, 100), crowd=(1,))
    metrics = measure(truth, [])
    assert (metrics["AR@100"], metrics["ARs@100"], metrics["ARl@100"]) == (0.0, 0.0, None)
    assert measure(ground_truth(), [])["AR@1000"] is None


def test_agrees_with_pycocotools_if_assignments_are_unambiguous():
    rng = np.random.default_rng(0)
    truth = [
        (i, 150 * (n % 3), 150 * (n // 3), *rng.uniform(10, 140, 2)) for i in range(4)
        for n in range(9)
    ]  # fmt: skip
    boxes = [
        (i, x + rng.normal() * w / 9, y, w * rng.uniform(0.7, 1.3), h) for i, x, y, w, h in truth
    ]
    coco, results = ground_truth(*truth, images=4), proposals(*boxes)
    with contextlib.redirect_stdout(io.StringIO()):
        oracle = COCOeval(coco, coco.loadRes(results), "bbox")
        oracle.params.useCats, oracle.params.maxDets = 0, [100]
        oracle.evaluate()
        oracle.accumulate()
    recall = oracle.eval["recall"][:, 0, :, 0].mean(axis=0)
    metrics = measure(coco, results)
    assert [metrics[f"AR{letter}@100"] for letter in ("", "s", "m", "l")] == pytest.approx(
        list(recall)
    )
