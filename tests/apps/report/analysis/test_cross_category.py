"""Confusion matrix."""

import pytest

from detlite.apps.report.analysis.cross_category import CrossCategoryMatches, confusion_matrix
from detlite.evaluation import Results
from tests.evaluation.synthetic_detections import synthetic_dataset


# From an implementation that matches the pairs of each image one by one, by decreasing IoU.
@pytest.mark.parametrize(
    ("seed", "min_score", "expected"),
    [
        (0, 0.0, [[5, 1, 1, 1], [1, 8, 1, 4], [1, 0, 5, 5], [14, 23, 10, 0]]),
        (0, 0.4, [[2, 2, 1, 3], [0, 7, 0, 7], [1, 0, 4, 6], [5, 11, 8, 0]]),
        (1, 0.0, [[4, 0, 1, 4], [0, 7, 0, 1], [1, 0, 4, 1], [9, 8, 8, 0]]),
        (1, 0.99, [[0, 0, 0, 9], [0, 0, 0, 8], [0, 0, 0, 6], [0, 0, 0, 0]]),
    ],
)
def test_confusion_matrix(seed, min_score, expected):
    coco, rows = synthetic_dataset(seed)
    matches = CrossCategoryMatches(coco, Results.from_coco(rows), "bbox", 100)
    assert confusion_matrix(matches, min_score).tolist() == expected
