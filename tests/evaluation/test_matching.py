"""COCO metrics compared with pycocotools, on random datasets with crowds, ties and empty masks."""

import contextlib
import copy
import io
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pycocotools import mask as rle_codec
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from detlite.evaluation import Results, evaluate_coco
from detlite.evaluation.coco import match_coco
from detlite.evaluation.matching import ScoreThreshold, accumulate, best_threshold
from detlite.ops.dispatch import use_fallback_ops
from tests.builders import coco_content, make_coco
from tests.evaluation.synthetic_detections import synthetic_dataset

HEIGHT, WIDTH = 120, 150
FIELDS = {"bbox": "bbox", "segm": "segmentation", "keypoints": "keypoints"}


def blob(rng: np.random.Generator, box: np.ndarray) -> np.ndarray:
    """Make an ellipse with holes in a box."""
    x, y, w, h = box
    ys, xs = np.mgrid[:HEIGHT, :WIDTH] + 0.5
    inside = ((xs - x - w / 2) / w) ** 2 + ((ys - y - h / 2) / h) ** 2 < 0.25
    return np.asfortranarray((inside & (rng.random(inside.shape) < 0.95)).astype(np.uint8))


def keypoints_in(rng: np.random.Generator, box: np.ndarray) -> list[float]:
    points = np.concatenate([box[:2] + rng.random((17, 2)) * box[2:], np.ones((17, 1))], axis=1)
    return points.round(1).ravel().tolist()


def random_set(seed: int) -> tuple[COCO, list[dict[str, Any]]]:
    """Make objects of all sizes and detections with equal scores and some empty masks.

    The image ids are not in order. One image and one category have no objects, and one image has no
    detections.
    """
    rng = np.random.default_rng(seed)
    images, categories = (30, 4, 17, 8, 5), {k: str(k) for k in (9, 2, 5, 4)}
    content = coco_content((), images, (HEIGHT, WIDTH), categories)
    content["info"], results = {}, []
    for image in images:
        for _ in range(0 if image == 8 else 9):
            size = np.exp(rng.uniform(np.log(6), np.log(110), 2))
            box = np.concatenate([rng.random(2) * ((WIDTH, HEIGHT) - size), size]).round(1)
            crowd, category = int(rng.random() < 0.2), int(rng.choice([9, 2, 5]))
            bitmap = blob(rng, box)
            rle = rle_codec.encode(bitmap)
            mask: Any = {"size": rle["size"], "counts": rle["counts"].decode()}
            if crowd:
                flat = bitmap.ravel(order="F")
                edges = np.flatnonzero(np.diff(flat, prepend=0))
                counts = np.diff(edges, prepend=0, append=flat.size).tolist()
                mask = {"size": rle["size"], "counts": counts}
            elif rng.random() < 0.5:
                x, y, w, h = box
                mask = [[x, y, x + w, y + h / 3, x + w / 2, y + h], [x, y + h, x + 3, y, x, y]]
                mask = [[float(c) for c in ring] for ring in mask]
            points = keypoints_in(rng, box)
            visible = rng.choice([0, 1, 2], 17) * (rng.random() < 0.8)
            points[2::3] = visible.tolist()
            content["annotations"].append(
                {"id": len(content["annotations"]) + 1, "image_id": image, "iscrowd": crowd,
                 "category_id": category, "bbox": box.tolist(), "segmentation": mask,
                 "area": float(bitmap.sum()), "keypoints": points,
                 "num_keypoints": int((visible > 0).sum())}
            )  # fmt: skip
            for _ in range(0 if image == 5 else int(rng.integers(0, 7))):
                moved = box + rng.normal(size=4) * box[[2, 3, 2, 3]] * rng.uniform(0, 0.2)
                moved[2:] = np.abs(moved[2:]) + 1
                detected = np.array(points).reshape(17, 3)
                detected[:, :2] += rng.normal(size=(17, 2)) * box[2:] * rng.uniform(0, 0.1)
                rle = rle_codec.encode(blob(rng, moved) * np.uint8(rng.random() < 0.95))
                results.append(
                    {"image_id": image, "bbox": moved.tolist(),
                     "category_id": category if rng.random() < 0.8 else 4,
                     "score": float(rng.integers(1, 12)) / 11,
                     "segmentation": {"size": rle["size"], "counts": rle["counts"].decode()},
                     "keypoints": detected.ravel().tolist()}
                )  # fmt: skip
    results.append({**results[0], "image_id": 8})
    return make_coco(content), results


def official(
    truth: COCO, rows: list[dict[str, Any]], kind: str, limits: list[int], **params: Any
) -> COCOeval:
    fields = ("image_id", "category_id", "score", FIELDS[kind])
    own = make_coco(copy.deepcopy(truth.dataset))
    with contextlib.redirect_stdout(io.StringIO()):
        results = own.loadRes([{name: row[name] for name in fields} for row in rows])
        evaluator = COCOeval(own, results, kind)
        vars(evaluator.params).update(maxDets=limits, **params)
        evaluator.evaluate()
        evaluator.accumulate()
    return evaluator


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ops", [nullcontext, use_fallback_ops])
@pytest.mark.parametrize(
    ("kind", "max_dets", "limits"),
    [("bbox", 100, [1, 10, 100]), ("bbox", 2, [1, 2, 10]), ("segm", 100, [1, 10, 100]),
     ("segm", 3, [1, 3, 10]), ("keypoints", 100, [20])],
)  # fmt: skip
def test_values_of_pycocotools(seed, ops, kind, max_dets, limits):
    truth, rows = random_set(seed)
    results = Results.from_coco(rows, [kind])
    with ops():
        tables = accumulate(match_coco(truth, results, kind, max_dets))
    expected = official(truth, rows, kind, limits)
    last = 0 if kind == "keypoints" else limits.index(max_dets)
    np.testing.assert_allclose(tables.recall, expected.eval["recall"], rtol=0, atol=1e-12)
    precision = expected.eval["precision"][..., last]
    np.testing.assert_allclose(tables.precision, precision, rtol=0, atol=1e-12)
    if max_dets == 100:
        metrics = evaluate_coco(truth, results, [kind], max_dets)[kind]
        with contextlib.redirect_stdout(io.StringIO()):
            expected.summarize()
        values = [value for value in metrics.values() if not isinstance(value, dict)]
        assert [-1 if v is None else v for v in values] == pytest.approx(expected.stats, abs=1e-12)
        assert 0.02 < metrics["AP"] < 0.9


@pytest.mark.parametrize("kind", ["bbox", "segm", "keypoints"])
@pytest.mark.parametrize("ious", [(0.3,), (0.2, 0.5, 0.9), (0.75, 0.8)])
def test_other_ious_and_areas_give_the_values_of_pycocotools(kind, ious):
    truth, rows = random_set(3)
    results, areas = Results.from_coco(rows, [kind]), (150, 900)
    metrics = evaluate_coco(truth, results, [kind], iou_thresholds=ious, area_limits=areas)[kind]
    ranges = [[0, 1e10], *([] if kind == "keypoints" else [[0, 150]]), [150, 900], [900, 1e10]]
    limits = [20] if kind == "keypoints" else [1, 10, 100]
    expected = official(truth, rows, kind, limits, iouThrs=np.array(ious), areaRng=ranges)
    tables = [expected.eval["precision"][..., -1], expected.eval["recall"][..., -1]]
    names = ["", *("sml" if len(ranges) == 4 else "ml")]
    for prefix, table in zip(("AP", "AR"), tables, strict=True):
        for n, name in enumerate(names):
            known = table[..., n][table[..., n] > -1]
            limit = "100" if prefix == "AR" and not name and len(ranges) == 4 else ""
            value = metrics[f"{prefix}{name}{limit}"]
            assert value == (pytest.approx(known.mean()) if known.size else None)
    usual = evaluate_coco(truth, results, [kind])[kind]
    assert [metrics[k] for k in ("AP50", "AP75", "best_f1")] == [
        usual[k] for k in ("AP50", "AP75", "best_f1")
    ]


@pytest.mark.parametrize(
    "settings",
    [{"iou_thresholds": ious} for ious in ((0.5, 0.5), (0, 0.5), (0.5, 1.5), (50,))]
    + [{"area_limits": areas} for areas in ((5,), (9, 4), (0, 4), (1, 2, 3))],
)
def test_invalid_settings(settings):
    truth, _ = random_set(3)
    with pytest.raises(ValueError, match=r"(IoU thresholds|area limits) must (increase|be two)"):
        evaluate_coco(truth, [], ["bbox"], **settings)


def test_float32_results():
    truth, rows = random_set(7)
    results = Results.from_coco(rows)
    assert results.boxes is not None
    scores, boxes = results.scores.astype(np.float32), results.boxes.astype(np.float32)
    narrow = replace(results, scores=scores, boxes=boxes)
    again = Results.from_coco(list(narrow.to_coco()))
    assert evaluate_coco(truth, narrow, ["bbox"]) == evaluate_coco(truth, again, ["bbox"])


def test_best_threshold_has_the_highest_f1():
    coco, rows = synthetic_dataset(5, crowds=0)
    matched = match_coco(coco, Results.from_coco(rows), "bbox")
    result = best_threshold(matched)
    right = matched.outcomes[0, 0] == 1
    objects = len(coco.dataset["annotations"])

    def f1(score):
        kept = matched.pairing.scores >= score
        return 2 * (right & kept).sum() / (kept.sum() + objects)

    assert result.f1 == pytest.approx(max(f1(row["score"]) for row in rows))
    assert result.f1 == pytest.approx(f1(result.score))
    stored = evaluate_coco(coco, Results.from_coco(rows), ["bbox"])["bbox"]["best_f1"]
    assert ScoreThreshold(**stored) == result
    kept = matched.pairing.scores >= result.score
    assert result.precision == pytest.approx((right & kept).sum() / kept.sum())
    assert result.recall == pytest.approx((right & kept).sum() / objects)


def test_equal_scores_are_kept_together():
    """A threshold keeps all detections of the same score."""
    coco, rows = synthetic_dataset(6, crowds=0)
    rows = [{**row, "score": 0.5} for row in rows]
    matched = match_coco(coco, Results.from_coco(rows), "bbox")
    result = best_threshold(matched)
    assert result.score == 0.5
    assert result.precision == pytest.approx((matched.outcomes[0, 0] == 1).mean())


def test_no_detections():
    coco, _ = synthetic_dataset(7)
    assert best_threshold(match_coco(coco, Results.from_coco([]), "bbox")) is None
    assert ScoreThreshold(0.5, 0.0, 0.0).f1 == 0
