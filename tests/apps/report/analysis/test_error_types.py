"""Error types: simple cases, a slow implementation of TIDE's rules, and TIDE itself."""

import numpy as np
import pytest
from pycocotools import mask as rle_codec

from detlite.apps.report.analysis import error_types
from detlite.apps.report.analysis.cross_category import CrossCategoryMatches
from detlite.apps.report.analysis.error_types import (
    ERROR_TYPES,
    FALSE_POSITIVE_TYPES,
    IGNORED,
    TRUE_POSITIVE,
    DetectionErrors,
)
from detlite.evaluation import Results
from detlite.evaluation.engine import RECALL_THRESHOLDS
from tests.builders import coco_content, coco_detection, coco_object, make_coco
from tests.evaluation.synthetic_detections import synthetic_dataset

SEEDS = range(6)


def measured(coco, rows, kind="bbox", max_dets=100):
    return DetectionErrors(
        CrossCategoryMatches(coco, Results.from_coco(rows, ("bbox", "segm")), kind, max_dets)
    )


def average_precision(detections, objects):
    """Compute AP of `detections` (score, is true positive) and a number of `objects`."""
    right, points = 0, []
    for number, (_, hit) in enumerate(sorted(detections, key=lambda one: -one[0]), start=1):
        right += hit
        points.append((right / objects, right / number))
    heights = [
        max((p for r, p in points if r >= level), default=0.0) for level in RECALL_THRESHOLDS
    ]
    return sum(heights) / 101


def mean_ap(detections, objects, known):
    """Compute the mean AP of detections (category, score, is true positive).

    `objects` maps categories to their number of objects.
    """
    values = []
    for category in known:
        own = [(score, right) for of, score, right in detections if of == category]
        if objects[category]:
            values.append(average_precision(own, objects[category]))
        elif own:
            values.append(0.0)
    return sum(values) / len(values)


def slow_errors(coco, rows, field):
    """Compute counts, gains and AP image by image and detection by detection."""
    detections = []  # category, score, type, object
    objects = {}
    for image_id in coco.imgs:
        labelled = [a for a in coco.dataset["annotations"] if a["image_id"] == image_id]
        crowd = [a for a in labelled if a["iscrowd"]]
        expected = [a for a in labelled if not a["iscrowd"]]
        objects |= {a["id"]: {**a, "found": False, "best": None} for a in expected}
        own = sorted((r for r in rows if r["image_id"] == image_id), key=lambda r: -r["score"])
        if not own:
            continue
        overlap = np.zeros((len(own), len(expected)))
        if expected:
            overlap = rle_codec.iou([r[field] for r in own], [a[field] for a in expected],
                                    [0] * len(expected))  # fmt: skip
        over_crowd = np.zeros((len(own), len(crowd)))
        if crowd:
            over_crowd = rle_codec.iou([r[field] for r in own], [a[field] for a in crowd],
                                       [1] * len(crowd))  # fmt: skip
        matched = {}
        for n, row in enumerate(own):
            free = [(overlap[n, g], -g) for g, a in enumerate(expected)
                    if a["category_id"] == row["category_id"]
                    and not objects[a["id"]]["found"]]  # fmt: skip
            if free and max(free)[0] >= 0.5:
                matched[n] = -max(free)[1]
                objects[expected[matched[n]]["id"]]["found"] = True
        for n, row in enumerate(own):
            same = [(overlap[n, g], -g) for g, a in enumerate(expected)
                    if a["category_id"] == row["category_id"]]  # fmt: skip
            other = [(overlap[n, g], -g) for g, a in enumerate(expected)
                     if a["category_id"] != row["category_id"]]  # fmt: skip
            best_same, best_other = max(same, default=(0, 0)), max(other, default=(0, 0))
            about = None
            if n in matched:
                kind = "right"
            elif any(over_crowd[n, c] > 0.5 and a["category_id"] == row["category_id"]
                     for c, a in enumerate(crowd)):  # fmt: skip
                kind = "ignored"
            elif 0.1 <= best_same[0] <= 0.5:
                kind, about = "localisation", expected[-best_same[1]]["id"]
            elif best_other[0] >= 0.5:
                kind, about = "classification", expected[-best_other[1]]["id"]
            elif best_same[0] >= 0.5:
                kind = "duplicate"
            elif max(best_same[0], best_other[0]) <= 0.1:
                kind = "background"
            else:
                kind = "both"
            entry = [row["category_id"], row["score"], kind, about]
            detections.append(entry)
            if about is not None and not objects[about]["found"]:
                best = objects[about]["best"]
                if best is None or best[1] < row["score"]:
                    objects[about]["best"] = entry
    counts = {kind: sum(d[2] == kind for d in detections) for kind in FALSE_POSITIVE_TYPES}
    missed = [a for a in objects.values() if not a["found"] and a["best"] is None]
    counts["missed"] = len(missed)
    known = sorted({a["category_id"] for a in objects.values()})
    to_find = {c: sum(a["category_id"] == c for a in objects.values()) for c in known}
    real = [d for d in detections if d[2] != "ignored"]
    plain = [(d[0], d[1], d[2] == "right") for d in real]
    ap = mean_ap(plain, to_find, known)
    gains = {}
    for kind in FALSE_POSITIVE_TYPES:
        corrected = []
        for d in real:
            if d[2] != kind:
                corrected.append((d[0], d[1], d[2] == "right"))
            elif d[3] is not None and objects[d[3]]["best"] is d:
                corrected.append((objects[d[3]]["category_id"], d[1], True))
        gains[kind] = max(mean_ap(corrected, to_find, known) - ap, 0)
    left = {c: n - sum(a["category_id"] == c for a in missed) for c, n in to_find.items()}
    gains["missed"] = max(mean_ap(plain, left, known) - ap, 0)
    return counts, gains, ap


@pytest.mark.parametrize("kind", ["bbox", "segm"])
@pytest.mark.parametrize("seed", SEEDS)
def test_rules_of_tide(seed, kind):
    coco, rows = synthetic_dataset(seed, images=15)
    counts, gains, ap = slow_errors(coco, rows, {"bbox": "bbox", "segm": "segmentation"}[kind])
    errors = measured(coco, rows, kind)
    assert errors.counts() == counts
    assert errors.gains == pytest.approx(gains, abs=1e-9)
    assert errors.ap == pytest.approx(ap, abs=1e-9)


def test_datasets_have_every_error_type():
    totals = dict.fromkeys(ERROR_TYPES, 0)
    for seed in SEEDS:
        errors = measured(*synthetic_dataset(seed, images=15))
        totals = {kind: totals[kind] + errors.counts()[kind] for kind in ERROR_TYPES}
        assert errors.types.min() >= IGNORED
    assert min(totals.values()) > 3


@pytest.mark.parametrize("mode", ["bbox", "segm"])
@pytest.mark.parametrize("seed", SEEDS)
def test_tide_itself(monkeypatch, seed, mode):
    """Compare with TIDE, using its recall thresholds n / 100, which are rounded differently.

    There are no crowds: TIDE 1.0.1 counts detections in crowds as errors, but not in AP. All
    categories have objects: TIDE counts others as an AP of 0.
    """
    tidecv = pytest.importorskip("tidecv", reason="tidecv, which needs pandas, is not installed")
    from tidecv.errors import main_errors

    coco, rows = synthetic_dataset(seed, images=15, crowds=0)
    truth, detections = tidecv.Data("truth"), tidecv.Data("found")
    for row in coco.dataset["annotations"]:
        truth.add_ground_truth(row["image_id"], row["category_id"], row["bbox"],
                               row["segmentation"])  # fmt: skip
    for image_id in coco.imgs:
        truth.add_image(image_id, str(image_id))
    for row in rows:
        detections.add_detection(row["image_id"], row["category_id"], row["score"], row["bbox"],
                            row["segmentation"])  # fmt: skip
    monkeypatch.setattr(error_types, "RECALL_THRESHOLDS", np.array([n / 100 for n in range(101)]))
    box = mode == "bbox"
    tide = tidecv.TIDE()
    run = tide.evaluate(truth, detections, mode=tidecv.TIDE.BOX if box else tidecv.TIDE.MASK)
    names = {"classification": "ClassError", "localisation": "BoxError", "both": "OtherError",
             "duplicate": "DuplicateError", "background": "BackgroundError",
             "missed": "MissedError"}  # fmt: skip
    counts, gains = run.count_errors(), run.fix_main_errors()
    own = measured(coco, rows, mode)
    assert 100 * own.ap == pytest.approx(run.ap, abs=1e-6)
    for kind, name in names.items():
        theirs = getattr(main_errors, name)
        assert own.counts()[kind] == counts[theirs], kind
        assert 100 * own.gains[kind] == pytest.approx(gains[theirs], abs=1e-6), kind


def errors_of(annotations, rows):
    content = coco_content(coco_object(box, category) for category, box in annotations)
    detections = [coco_detection(box, score, category) for category, box, score in rows]
    return DetectionErrors(
        CrossCategoryMatches(make_coco(content), Results.from_coco(detections), "bbox", 100)
    )


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
    assert errors.types.tolist() == [TRUE_POSITIVE, FALSE_POSITIVE_TYPES.index("classification")]
    assert errors.ap == pytest.approx(0.5)
    assert errors.gains["classification"] == pytest.approx(0.5)
    assert errors.gains["missed"] == 0
    assert errors.objects.tolist() == [0, 1]


def test_no_objects():
    errors = errors_of([], [(1, BOX, 0.9)])
    assert errors.ap is None
    assert set(errors.gains.values()) == {0.0}
    assert errors.counts()["background"] == 1
