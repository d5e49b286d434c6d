"""Score threshold with the best F1."""

import pytest

from detlite.evaluation import Results, evaluate_coco
from detlite.evaluation.coco import match_coco
from detlite.evaluation.thresholds import ScoreThreshold, best_threshold
from tests.evaluation.synthetic_detections import synthetic_dataset


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
