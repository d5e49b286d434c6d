"""COCO metrics: reference values, and cases that pycocotools does not handle."""

import copy
import json
import math
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from pycocotools import mask as rle_codec
from pycocotools.coco import COCO

from detlite.data import CocoDataset
from detlite.data.datasets.ground_truth import build_coco_gt
from detlite.data.datasets.options import DatasetOptions
from detlite.evaluation import Results, engine, evaluate_coco
from detlite.evaluation.coco import match_coco
from detlite.evaluation.engine import IGNORED, read_outcomes
from detlite.structures.masks.formats import encode_bitmap, to_bitmap
from tests.builders import coco_content, coco_object, make_coco, rectangle
from tests.evaluation.synthetic_detections import synthetic_dataset

Json = dict[str, Any]


def evaluate(
    gt: COCO, rows: list[Json], iou_types: tuple[str, ...] = ("bbox", "segm"), *options: Any
) -> Json:
    results = Results.from_coco(rows, iou_types)
    return evaluate_coco(gt, results, iou_types, *options)


def make_gt(annotations: list[Json], images: int = 2, **fields: Any) -> COCO:
    """Make ground truth without info, area or iscrowd, unless an annotation has them."""
    content = coco_content((), range(1, images + 1), (100, 200), {3: "cat", 70: "dog"})
    return make_coco({**content, "annotations": annotations, **fields})


def square(number: int, image_id: int, category_id: int, x: float, **fields: Any) -> Json:
    """Make an annotation of 40 x 40 pixels at (x, 10)."""
    box = [x, 10, 40, 40]
    annotation = {"id": number, "image_id": image_id, "category_id": category_id, "bbox": box}
    return {**annotation, "segmentation": rectangle(*box), **fields}


def detect(annotation: Json, score: float = 0.9) -> Json:
    """Make a perfect detection of an annotation."""
    rle = encode_bitmap(to_bitmap(annotation["segmentation"], 100, 200))
    fields = {name: annotation[name] for name in ("image_id", "category_id", "bbox")}
    return {**fields, "score": score, "segmentation": rle}


THREE = [square(1, 1, 3, 10), square(2, 1, 70, 100), square(3, 2, 3, 60)]


class TestScores:
    def test_perfect_detections(self):
        metrics = evaluate(make_gt(THREE), [detect(a) for a in THREE])
        for kind in ("bbox", "segm"):
            assert metrics[kind]["AP"] == pytest.approx(1)
            assert metrics[kind]["AR100"] == 1
            assert metrics[kind]["per_category"] == pytest.approx({"cat": 1, "dog": 1})
            assert (metrics[kind]["APs"], metrics[kind]["ARl"]) == (None, None)
        json.dumps(metrics, allow_nan=False)

    def test_missed_objects(self):
        metrics = evaluate(make_gt(THREE), [detect(THREE[0]), detect(THREE[2])], "bbox")
        assert metrics.keys() == {"bbox"}
        assert metrics["bbox"]["per_category"] == pytest.approx({"cat": 1, "dog": 0})
        metrics = evaluate(make_gt(THREE), [])
        assert metrics["bbox"]["AP"] == metrics["segm"]["AP50"] == metrics["bbox"]["AR100"] == 0

    @pytest.mark.parametrize("sigmas", [(), (0.1, 0.05, 0.02)], ids=["default", "explicit"])
    def test_other_numbers_of_keypoints_than_17(self, sigmas):
        object_ = square(1, 1, 3, 10, keypoints=[20, 20, 2, 24, 20, 1, 0, 0, 0])
        coco = [26, 25, 25, 35, 35, 79, 79, 72, 72, 62, 62, 107, 107, 87, 87, 89, 89]
        sigma = sigmas[1] if sigmas else sum(coco) / 17000
        for shift in range(4):  # pixels, of the second keypoint
            keypoints = [20, 20, 1, 24 + shift, 20, 1, 0, 0, 1]
            result = {**detect(object_), "keypoints": keypoints}
            metrics = evaluate(make_gt([object_]), [result], ("keypoints",), 100, sigmas)
            oks = (1 + math.exp(-(shift**2) / (2 * 40**2 * (2 * sigma) ** 2))) / 2
            passed = sum(oks >= 0.5 + 0.05 * t for t in range(10))
            assert metrics["keypoints"]["AP"] == pytest.approx(passed / 10)

    def test_annotations_without_keypoints_are_skipped(self):
        person = square(1, 1, 3, 10, keypoints=[20, 20, 2] * 17)
        result = {**detect(person), "keypoints": person["keypoints"]}
        gt = make_gt([person, square(2, 1, 70, 100)])
        for results in ([result], []):
            metrics = evaluate(gt, results, ("keypoints",))["keypoints"]
            assert metrics["AP"] == pytest.approx(len(results))

    @pytest.mark.parametrize("objects", [[], [square(1, 1, 3, 10, iscrowd=1)]])
    @pytest.mark.parametrize("results", [[], [detect(THREE[0])]])
    def test_without_objects_but_crowds_metrics_are_none(self, objects, results):
        metrics = evaluate(make_gt(objects), results)
        assert metrics["bbox"]["AP"] is None
        assert metrics["segm"]["AP"] is None

    def test_arguments_are_not_changed(self, capsys):
        annotations = [square(0, 1, 3, 10)]
        gt, results = make_gt(annotations), [detect(THREE[0])]
        before = copy.deepcopy((gt.dataset, results))
        capsys.readouterr()
        assert evaluate(gt, results)["bbox"]["AP"] == pytest.approx(1)
        assert (gt.dataset, results) == before
        assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_dets": 0}, "max_dets must be at least 1, got 0"),
        ({"iou_types": ["mask"]}, "unknown 'mask'; known: bbox, segm, keypoints"),
        ({"oks_sigmas": (0.1, 0.1)}, "oks_sigmas has 2 values, but .* has 17 keypoints"),
        ({}, "the results have 5 keypoints, but the ground truth has 17"),
        *(({"iou_thresholds": ious}, "IoU thresholds must increase")
          for ious in ((0.5, 0.5), (0, 0.5), (0.5, 1.5), (50,))),
    ],
)  # fmt: skip
def test_invalid_arguments(options, message):
    person = square(1, 1, 3, 10, keypoints=[20, 20, 2] * 17)
    rows = [{**detect(person), "keypoints": [20, 20, 1] * 5}]
    with pytest.raises(ValueError, match=message):
        evaluate_coco(make_gt([person]), rows, **{"iou_types": ["keypoints"], **options})


@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_exact_detections_of_skipped_objects_are_no_errors(tmp_path, kind):
    """An object whose mask cannot be used is a region to ignore."""
    boxes = [[4, 4, 10, 8], [20, 4, 12, 9], [4, 20, 9, 9], [20, 20, 14, 12]]
    content = coco_content(
        (coco_object(box, segmentation=rectangle(*box)) for box in boxes), size=(40, 40)
    )
    exact = [{**row, "score": 0.9 - row["id"] / 10} for row in content["annotations"]]
    content["annotations"][0] = {**exact[0], "segmentation": [[1, 2, 3, 4]]}
    (tmp_path / "a.json").write_text(json.dumps(content))
    dataset = CocoDataset(
        tmp_path / "a.json", tmp_path, DatasetOptions(skip_bad=True, check_images=False)
    )
    for result in exact:
        mask = rle_codec.merge(rle_codec.frPyObjects(result["segmentation"], 40, 40))
        result["segmentation"] = {"size": [40, 40], "counts": mask["counts"].decode()}
    results = Results.from_coco(exact, (kind,))
    assert evaluate_coco(build_coco_gt(dataset), results, (kind,))[kind]["AP"] == pytest.approx(1.0)


@pytest.mark.parametrize("engine_name", engine.ENGINES)
@pytest.mark.parametrize(("kept", "step"), [(None, 1), (0.5, 1), (None, 7)])
def test_best_threshold_has_the_highest_f1(engine_name, kept, step, monkeypatch):
    """Equal scores are kept together; among many scores, every seventh one may be a threshold."""
    monkeypatch.setattr(engine, "ENGINES", {engine_name: engine.ENGINES[engine_name]})
    coco, rows = synthetic_dataset(5)
    rows = [{**row, "score": kept or row["score"]} for row in rows]
    scores = np.array([row["score"] for row in rows])
    monkeypatch.setattr(engine, "_THRESHOLDS", -(-len(np.unique(scores)) // step))
    found = match_coco(coco, Results.from_coco(rows), "bbox")
    measures = found.tables.measures
    outcomes = read_outcomes(found.evaluator, measures, len(rows))[measures.area("all")][0]
    objects = sum(not row["iscrowd"] for row in coco.dataset["annotations"])

    def f1(threshold):
        counted = (scores >= threshold) & (outcomes != IGNORED)
        return 2 * (outcomes[counted] == 1).sum() / (counted.sum() + objects)

    best = found.threshold
    assert f1(best.score) == pytest.approx(max(map(f1, np.unique(scores)[::step])))
    assert best.f1 == pytest.approx(f1(best.score))
    counted = (scores >= best.score) & (outcomes != IGNORED)
    assert best.precision == pytest.approx((outcomes[counted] == 1).mean())
    assert best.recall == pytest.approx((outcomes[counted] == 1).sum() / objects)
    metrics = evaluate_coco(coco, Results.from_coco(rows), ["bbox"])["bbox"]
    assert metrics["best_f1"] == asdict(best)
    assert "best_f1" not in evaluate_coco(coco, [], ["bbox"])["bbox"]
