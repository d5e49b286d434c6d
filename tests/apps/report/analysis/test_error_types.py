"""Error types: numbers of TIDE for datasets with every type, and simple cases."""

import pytest

from detlite.apps.report.analysis.error_types import (
    CORRECT,
    ERROR_TYPES,
    CrossCategoryMatches,
    DetectionErrors,
    confusion_matrix,
)
from detlite.evaluation import Results
from tests.builders import coco_content, coco_detection, coco_object, make_coco
from tests.evaluation.synthetic_detections import synthetic_dataset


def measured(coco, rows, kind="bbox"):
    results = Results.from_coco(rows, (kind,))
    return DetectionErrors(CrossCategoryMatches(coco, results, kind, 100))


# Counts and gains of ERROR_TYPES, and AP, by TIDE's rules, from an implementation that goes through
# the images and detections one by one.
RECORDED = [
    ("bbox", 0, [9, 23, 7, 9, 10, 2], [0.069744, 0.336701, 0.007087, 0.006166, 0.017235, 0.009944],
     0.349184),
    ("bbox", 1, [6, 9, 3, 4, 15, 3], [0.135359, 0.156722, 0.008901, 0.015792, 0.079663, 0.034727],
     0.267612),
    ("segm", 1, [6, 7, 3, 5, 15, 3], [0.135194, 0.119593, 0.011807, 0.015323, 0.094762, 0.039237],
     0.325533),
    ("segm", 2, [8, 20, 5, 7, 12, 11], [0.071061, 0.148621, 0.022842, 0.011746, 0.02701, 0.098257],
     0.400562),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "seed", "counts", "gains", "ap"), RECORDED)
def test_rules_of_tide(kind, seed, counts, gains, ap):
    errors = measured(*synthetic_dataset(seed, images=15), kind)
    assert errors.counts() == dict(zip(ERROR_TYPES, counts, strict=True))
    assert list(errors.gains) == list(ERROR_TYPES)
    assert [*errors.gains.values(), errors.ap] == pytest.approx([*gains, ap], abs=1e-6)


def errors_of(annotations, rows):
    content = coco_content(coco_object(box, category) for category, box in annotations)
    detections = [coco_detection(box, score, category) for category, box, score in rows]
    return measured(make_coco(content), detections)


BOX = [10.0, 10.0, 40.0, 40.0]
SHIFTED = [30.0, 10.0, 40.0, 40.0]  # IoU 1/3
FAR = [60.0, 60.0, 30.0, 30.0]


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([(2, BOX, 0.9)], "classification"),
        ([(1, SHIFTED, 0.9)], "localisation"),
        ([(2, SHIFTED, 0.9)], "both"),
        ([(1, BOX, 0.9), (1, BOX, 0.8)], "duplicate"),
        ([(1, FAR, 0.9)], "background"),
        ([], "missed"),
    ],
)
def test_one_error(rows, kind):
    errors = errors_of([(1, BOX)], rows)
    # These detections belong to no object, so the object is missed, too.
    also = {"missed": int(kind in ("both", "background", "missed"))}
    expected = dict.fromkeys(ERROR_TYPES, 0) | {kind: 1} | also
    assert errors.counts() == expected
    assert (errors.found_by >= 0).tolist() == [kind == "duplicate"]


def test_one_error_of_two():
    errors = errors_of([(1, BOX), (2, FAR)], [(1, BOX, 0.9), (1, FAR, 0.8)])
    assert errors.types.tolist() == [CORRECT, ERROR_TYPES.index("classification")]
    assert errors.ap == pytest.approx(0.5)
    assert errors.gains["classification"] == pytest.approx(0.5)
    assert errors.gains["missed"] == 0
    assert errors.objects.tolist() == [0, 1]


def test_no_objects():
    errors = errors_of([], [(1, BOX, 0.9)])
    assert errors.ap is None
    assert set(errors.gains.values()) == {0.0}
    assert errors.counts()["background"] == 1


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
