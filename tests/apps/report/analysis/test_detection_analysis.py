"""Analyses agree with `evaluate_coco` and with each other; calibration of scores."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from pycocotools.coco import COCO

from detlite.apps.report.analysis.bootstrap import sample_images
from detlite.apps.report.analysis.detection_analysis import Calibration, DetectionAnalysis
from detlite.apps.report.analysis.error_types import confusion_matrix
from detlite.data import DataError
from detlite.evaluation import Results, evaluate_coco
from tests.evaluation.synthetic_detections import synthetic_dataset


@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_boxes_and_masks(kind):
    coco, rows = synthetic_dataset(0)
    results = Results.from_coco(rows, ("bbox", "segm"))
    analysis = DetectionAnalysis(coco, results, kind, sample_images(12, 20, 0), 50)
    expected = evaluate_coco(coco, results, [kind], 50)[kind]
    assert asdict(analysis.threshold) == expected.pop("best_f1")
    assert analysis.metrics == expected
    assert analysis.names == ["c3", "c7", "c20"]
    expected = [row["category_id"] for row in coco.dataset["annotations"] if not row["iscrowd"]]
    assert analysis.objects.tolist() == [expected.count(number) for number in (3, 7, 20)]
    confusion = confusion_matrix(analysis.errors.matches, analysis.threshold.score)
    assert (confusion[:3].sum(axis=1) == analysis.objects).all()
    assert analysis.errors.ap == pytest.approx(analysis.metrics["AP50"], abs=0.02)
    assert analysis.bootstrap.metrics()["AP"].shape == (20,)
    assert 0 < analysis.calibration.counts.sum() < len(rows)  # without those in crowds


def test_keypoints_have_no_error_types(data_root):
    folder = data_root / "data" / "cocoeval_val2014_100" / "keypoints"
    results = Results.from_coco(json.loads((folder / "dt.json").read_text()), ["keypoints"])
    coco = COCO(folder / "gt.json")
    analysis = DetectionAnalysis(coco, results, "keypoints", np.ones((1, len(coco.imgs)), np.uint8))
    expected = evaluate_coco(coco, results, ["keypoints"])["keypoints"]
    assert analysis.metrics == {name: expected[name] for name in analysis.metrics}
    sampled = analysis.bootstrap.metrics()  # of all images once
    assert sampled.keys() == {"AP", "AP50", "AP75", "APm", "APl", "AR"}
    assert all(value[0] == pytest.approx(expected[name]) for name, value in sampled.items())
    assert analysis.errors is None
    assert 0 < analysis.threshold.recall < 1
    assert analysis.calibration.counts.sum() > 0


def test_results_of_another_dataset():
    coco, rows = synthetic_dataset(0)
    results = Results.from_coco([{**rows[0], "image_id": 10**6}])
    with pytest.raises(DataError, match="results of another dataset"):
        DetectionAnalysis(coco, results, "bbox", sample_images(12, 20, 0))


def test_calibration():
    scores, correct = np.array([0.1, 0.9, 0.92, 0.94, 1]), np.array([1, 1, 0, 0, 1], bool)
    calibration = Calibration(scores, correct)
    assert calibration.counts.tolist() == [0, 1] + [0] * 7 + [4]
    assert calibration.scores[[1, 9]] == pytest.approx([0.1, 0.94])
    assert calibration.precision[[1, 9]] == pytest.approx([1, 0.5])
    assert calibration.error == pytest.approx((0.9 + 4 * (0.94 - 0.5)) / 5)
    assert calibration.excess == pytest.approx((-0.9 + 4 * (0.94 - 0.5)) / 5)
    assert calibration.wrong == 2
    empty = Calibration(np.empty(0), np.empty(0, bool))
    assert (empty.error, empty.excess) == (None, None)
