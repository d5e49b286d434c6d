"""Confusion matrix, and the threshold with the best F1."""

import numpy as np
import pytest
from pycocotools import mask as rle_codec

from detlite.apps.report.analysis.confusion import ScoreThreshold, best_threshold, confusion_matrix
from detlite.apps.report.analysis.cross_category import match_across_categories
from detlite.evaluation import Results
from detlite.evaluation.coco import match_coco
from tests.evaluation.synthetic_detections import CATEGORIES, synthetic_dataset


def slow_matrix(coco, rows, min_score):
    """Match pairs one by one, by falling IoU."""
    places = {category: k for k, category in enumerate(CATEGORIES)}
    matrix = np.zeros((4, 4), np.int64)
    for image_id in coco.imgs:
        labelled = [a for a in coco.dataset["annotations"] if a["image_id"] == image_id]
        expected = [a for a in labelled if not a["iscrowd"]]
        crowd = [a for a in labelled if a["iscrowd"]]
        own = [r for r in rows if r["image_id"] == image_id and r["score"] >= min_score]

        def overlaps(objects, is_crowd, own=own):
            if not own or not objects:
                return np.zeros((len(own), len(objects)))
            boxes = [o["bbox"] for o in objects]
            return rle_codec.iou([r["bbox"] for r in own], boxes, [is_crowd] * len(objects))

        table, in_crowd = overlaps(expected, 0), overlaps(crowd, 1)
        pairs = sorted((-table[d, g], d, g) for d in range(len(own)) for g in range(len(expected)))
        used, seen = set(), set()
        for overlap, d, g in pairs:
            if overlap <= -0.5 and d not in used and g not in seen:
                used.add(d)
                seen.add(g)
                matrix[places[expected[g]["category_id"]], places[own[d]["category_id"]]] += 1
        for g, annotation in enumerate(expected):
            matrix[places[annotation["category_id"]], 3] += g not in seen
        for d, row in enumerate(own):
            if d not in used and not (in_crowd[d] >= 0.5).any():
                matrix[3, places[row["category_id"]]] += 1
    return matrix


@pytest.mark.parametrize("min_score", [0.0, 0.4, 0.99])
@pytest.mark.parametrize("seed", range(3))
def test_agrees_with_the_slow_implementation(seed, min_score):
    coco, rows = synthetic_dataset(seed)
    matches = match_across_categories(coco, Results.from_coco(rows), "bbox", 100)
    result = confusion_matrix(matches, min_score)
    assert (result == slow_matrix(coco, rows, min_score)).all()
    expected = [not a["iscrowd"] for a in coco.dataset["annotations"]]
    assert result[:3].sum() == sum(expected)


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
