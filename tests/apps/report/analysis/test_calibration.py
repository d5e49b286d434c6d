"""Calibration of scores."""

import numpy as np
import pytest

from detlite.apps.report.analysis.calibration import Calibration, calibrate
from detlite.evaluation import Results
from detlite.evaluation.coco import match_coco
from tests.evaluation.synthetic_detections import synthetic_dataset


def test_bins_of_the_counted_detections():
    coco, rows = synthetic_dataset(0)
    matched = match_coco(coco, Results.from_coco(rows), "bbox")
    calibration = calibrate(matched, 5)
    outcomes, scores = matched.outcomes[0, 0], matched.pairing.scores
    assert (outcomes == 2).any()  # some are in crowds
    for n in range(5):
        own = (scores >= n / 5) & (scores < (n + 1) / 5) & (outcomes != 2)
        assert calibration.counts[n] == own.sum()
        assert calibration.scores[n] == pytest.approx(scores[own].mean())
        assert calibration.precision[n] == pytest.approx((outcomes[own] == 1).mean())
    gaps = (
        np.abs(calibration.scores - calibration.precision)
        * calibration.counts
        / calibration.counts.sum()
    )
    assert calibration.error == pytest.approx(gaps.sum())


def test_known_errors():
    calibration = Calibration(np.array([1, 0, 3]), np.array([0.1, np.nan, 0.9]),
                        np.array([0.3, np.nan, 0.5]))  # fmt: skip
    assert calibration.error == pytest.approx((0.2 + 3 * 0.4) / 4)
    assert calibration.excess == pytest.approx((-0.2 + 3 * 0.4) / 4)


def test_scores_of_one_and_no_detections():
    coco, rows = synthetic_dataset(1)
    certain = calibrate(match_coco(coco, Results.from_coco([{**rows[0], "score": 1.0}]), "bbox"))
    assert certain.counts.tolist() == [0] * 9 + [1]
    empty = calibrate(match_coco(coco, Results.from_coco([]), "bbox"))
    assert empty.error is None
    assert empty.excess is None
