"""Analyses agree with `evaluate_coco` and with each other."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from pycocotools.coco import COCO

from detlite.apps.report.analysis.bootstrap import sample_images
from detlite.apps.report.analysis.detection_analysis import analyze_detections
from detlite.data import DataError
from detlite.evaluation import Results, evaluate_coco
from tests.evaluation.synthetic_detections import synthetic_dataset


@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_boxes_and_masks(kind):
    coco, rows = synthetic_dataset(0)
    results = Results.from_coco(rows, ("bbox", "segm"))
    analysis = analyze_detections(coco, results, kind, sample_images(12, 20, 0), 50)
    expected = evaluate_coco(coco, results, [kind], 50)[kind]
    assert asdict(analysis.threshold) == expected.pop("best_f1")
    assert analysis.metrics == expected
    assert analysis.names == ["c3", "c7", "c20"]
    expected = [row["category_id"] for row in coco.dataset["annotations"] if not row["iscrowd"]]
    assert analysis.objects.tolist() == [expected.count(number) for number in (3, 7, 20)]
    assert (analysis.confusion[:3].sum(axis=1) == analysis.objects).all()
    assert analysis.errors.ap == pytest.approx(analysis.metrics["AP50"], abs=0.02)
    assert analysis.bootstrap.metrics()["AP"].shape == (20,)


def test_keypoints_have_no_error_types(data_root):
    folder = data_root / "data" / "cocoeval_val2014_100" / "keypoints"
    results = Results.from_coco(json.loads((folder / "dt.json").read_text()), ["keypoints"])
    coco = COCO(folder / "gt.json")
    analysis = analyze_detections(
        coco, results, "keypoints", np.ones((1, len(coco.imgs)), np.uint8)
    )
    expected = evaluate_coco(coco, results, ["keypoints"])["keypoints"]
    assert analysis.metrics == {name: expected[name] for name in analysis.metrics}
    assert analysis.errors is None
    assert analysis.confusion is None
    assert 0 < analysis.threshold.recall < 1
    assert analysis.calibration.counts.sum() > 0


def test_results_of_another_data_set():
    coco, rows = synthetic_dataset(0)
    results = Results.from_coco([{**rows[0], "image_id": 10**6}])
    with pytest.raises(DataError, match="results of another data set"):
        analyze_detections(coco, results, "bbox", sample_images(12, 20, 0))
