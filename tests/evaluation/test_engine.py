"""The engines give pycocotools' numbers on random sets with crowds, ties and empty masks."""

import contextlib
import copy
import io
from typing import Any

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from detlite.evaluation import Results, engine, evaluate_coco
from detlite.evaluation.coco import coco_measures, match_coco
from detlite.evaluation.engine import IGNORED, read_outcomes
from detlite.structures.masks.formats import encode_bitmap
from detlite.structures.masks.rle import run_lengths
from tests.builders import make_coco
from tests.evaluation.synthetic_detections import SIDE, synthetic_dataset

FIELDS = {"bbox": "bbox", "segm": "segmentation", "keypoints": "keypoints"}


def keypoints_in(box: list[float], visible: Any) -> list[float]:
    """Return 17 keypoints, each at the same place of every box xywh."""
    points = box[:2] + np.random.default_rng(0).random((17, 2)) * box[2:]
    return np.column_stack([points, np.broadcast_to(visible, 17)]).round(1).ravel().tolist()


def random_set(seed: int) -> tuple[COCO, list[dict[str, Any]]]:
    """Make a set with equal scores, keypoints, some empty masks, and masks of every format.

    The image ids are not in order, and one image has no detections.
    """
    rng = np.random.default_rng(seed)
    truth, rows = synthetic_dataset(seed, images=6, objects=9, crowds=0.2)
    content: Any = truth.dataset
    content["images"].sort(key=lambda image: image["id"] * 7 % 10)
    for row in content["annotations"]:
        visible = rng.choice([0, 1, 2], 17) * (rng.random() < 0.8)
        row["keypoints"] = keypoints_in(row["bbox"], visible)
        row["num_keypoints"] = int((visible > 0).sum())
        if row["iscrowd"]:
            row["segmentation"]["counts"] = run_lengths(row["segmentation"]["counts"]).tolist()
        elif rng.random() < 0.5:
            x, y, w, h = row["bbox"]
            row["segmentation"] = [
                [x, y, x + w, y + h / 3, x + w / 2, y + h],
                [x, y + h, x + 3, y, x, y],
            ]
    for row in rows:
        row["score"] = float(rng.integers(1, 12)) / 11
        row["keypoints"] = keypoints_in(row["bbox"], 1)
        if rng.random() < 0.05:
            row["segmentation"]["counts"] = encode_bitmap(np.zeros((SIDE, SIDE)))["counts"]
    return make_coco(content), [row for row in rows if row["image_id"] != 7]


def official(
    truth: COCO, rows: list[dict[str, Any]], fields: tuple[str, ...], **params: Any
) -> COCOeval:
    """Evaluate entries with these fields by pycocotools; the last field decides the kind."""
    kind = {name: kind for kind, name in FIELDS.items()}[fields[-1]]
    own = make_coco(copy.deepcopy(truth.dataset))
    fields = ("image_id", "category_id", "score", *fields)
    with contextlib.redirect_stdout(io.StringIO()):
        results = own.loadRes([{name: row[name] for name in fields} for row in rows])
        evaluator = COCOeval(own, results, kind)
        vars(evaluator.params).update(params)
        evaluator.evaluate()
        evaluator.accumulate()
    return evaluator


@pytest.fixture(params=engine.ENGINES)
def use_engine(request, monkeypatch):
    monkeypatch.setattr(engine, "ENGINES", {request.param: engine.ENGINES[request.param]})


CASES = [  # fields of the results, fields of pycocotools, max_dets, limits
    (("bbox",), ("bbox",), 100, [1, 10, 100]),
    (("bbox",), ("bbox",), 2, [1, 2, 10]),
    (("bbox",), ("bbox",), 300, [1, 10, 300]),
    (("segm",), ("segmentation",), 100, [1, 10, 100]),
    # The size of a detected mask is its area, also if there is a box, as in detectron2.
    (("bbox", "segm"), ("segmentation",), 3, [1, 3, 10]),
    (("keypoints",), ("keypoints",), 100, [20]),
    (("bbox", "keypoints"), ("bbox", "keypoints"), 100, [20]),
]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("kinds", "fields", "max_dets", "limits"), CASES)
@pytest.mark.usefixtures("use_engine")
def test_values_of_pycocotools(seed, kinds, fields, max_dets, limits):
    truth, rows = random_set(seed)
    kind, results = kinds[-1], Results.from_coco(rows, kinds)
    matched = match_coco(truth, results, kind, max_dets)
    expected = official(truth, rows, fields, maxDets=limits)
    last = limits.index(20 if kind == "keypoints" else max_dets)
    np.testing.assert_allclose(matched.tables.recall, expected.eval["recall"], atol=1e-12)
    precision = expected.eval["precision"][..., last]
    np.testing.assert_allclose(matched.tables.precision, precision, atol=1e-12)
    metrics = evaluate_coco(truth, results, [kind], max_dets)[kind]
    recall = expected.eval["recall"][..., 0, last]
    name = "AR" if kind == "keypoints" else f"AR{max_dets}"
    assert metrics[name] == pytest.approx(recall[recall > -1].mean())
    if max_dets == 100:
        with contextlib.redirect_stdout(io.StringIO()):
            expected.summarize()
        values = [value for value in metrics.values() if not isinstance(value, dict)]
        assert [-1 if v is None else v for v in values] == pytest.approx(expected.stats, abs=1e-12)
        assert 0.02 < metrics["AP"] < 0.9


@pytest.mark.parametrize("kind", FIELDS)
@pytest.mark.parametrize("ious", [(0.3,), (0.2, 0.5, 0.9), (0.75, 0.8)])
@pytest.mark.usefixtures("use_engine")
def test_other_ious_give_the_values_of_pycocotools(kind, ious):
    truth, rows = random_set(3)
    results = Results.from_coco(rows, [kind])
    metrics = evaluate_coco(truth, results, [kind], iou_thresholds=ious)[kind]
    measures = coco_measures(kind, 100)
    expected = official(truth, rows, (FIELDS[kind],), iouThrs=np.array(ious),
                        maxDets=measures.limits, areaRng=[*measures.areas.values()])  # fmt: skip
    tables = [expected.eval["precision"][..., -1], expected.eval["recall"][..., -1]]
    for prefix, table in zip(("AP", "AR"), tables, strict=True):
        for n, name in enumerate(measures.areas):
            known = table[..., n][table[..., n] > -1]
            letter = "" if name == "all" else name[0]
            limit = "100" if prefix == "AR" and not letter and kind != "keypoints" else ""
            value = metrics[f"{prefix}{letter}{limit}"]
            assert value == (pytest.approx(known.mean()) if known.size else None)
    usual = evaluate_coco(truth, results, [kind])[kind]
    assert [metrics[k] for k in ("AP50", "AP75", "best_f1")] == [
        usual[k] for k in ("AP50", "AP75", "best_f1")
    ]


@pytest.mark.parametrize("kind", FIELDS)
@pytest.mark.usefixtures("use_engine")
def test_outcomes_are_those_of_pycocotools(kind, monkeypatch):
    """For reports, also if they are read some images at a time."""
    truth, rows = random_set(1)
    results = Results.from_coco(rows, [kind])
    monkeypatch.setattr(engine, "_IMAGES_PER_STEP", 2)
    matched = match_coco(truth, results, kind)
    measures = matched.tables.measures
    outcomes = read_outcomes(matched.evaluator, measures, len(results))
    expected = official(truth, rows, (FIELDS[kind],), maxDets=[measures.max_dets],
                        areaRng=[*measures.areas.values()])  # fmt: skip
    images, areas = len(expected.params.imgIds), len(measures.areas)
    seen = np.zeros(len(results), bool)
    for n, entry in enumerate(expected.evalImgs):
        for d, number in enumerate(entry["dtIds"] if entry else ()):
            ignored, hits = entry["dtIgnore"][:, d], entry["dtMatches"][:, d] > 0
            outcome = np.where(ignored, IGNORED, hits)
            assert (outcomes[n // images % areas, :, number - 1] == outcome).all()
            seen[number - 1] = True
    assert (outcomes[..., ~seen] == IGNORED).all()


def test_pycocotools_is_used_without_hotcoco(monkeypatch):
    assert engine.load_engine()[0].__module__ != "pycocotools.coco"
    monkeypatch.setattr(engine, "find_spec", lambda name: name != "hotcoco")
    assert engine.load_engine() == (COCO, COCOeval)
