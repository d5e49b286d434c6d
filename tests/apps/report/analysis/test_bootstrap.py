"""Draws of images: they count as repeated images do, and their intervals hold what they should."""

from __future__ import annotations

import numpy as np
import pytest

from detlite.apps.report.analysis.bootstrap import compare, interval, resample, sample_images
from detlite.evaluation import Results, evaluate_coco
from detlite.evaluation.coco import category_names, match_coco
from tests.evaluation.synthetic import coco_of, synthetic_set

NAMES = {"AP": "AP", "AP50": "AP50", "AP75": "AP75", "APs": "APs", "APm": "APm", "APl": "APl",
         "AR": "AR100"}  # fmt: skip


def drawn_metrics(coco, rows, kind, draws):
    found = resample(match_coco(coco, Results.from_coco(rows, ("bbox", "segm")), kind), draws)
    return found.metrics(), found.by_category()


def check(coco, rows, kind, metrics, by_category, draw):
    """The numbers of one draw are those of `evaluate_coco`."""
    wanted = evaluate_coco(coco, Results.from_coco(rows, ("bbox", "segm")), [kind])[kind]
    for name, stated in NAMES.items():
        value = np.nan if wanted[stated] is None else wanted[stated]
        assert metrics[name][draw] == pytest.approx(value, abs=1e-6, nan_ok=True), name
    for k, name in enumerate(category_names(coco)):
        value = wanted["per_category"][name]
        value = np.nan if value is None else value
        assert by_category[draw, k] == pytest.approx(value, abs=1e-6, nan_ok=True), name


@pytest.mark.parametrize("kind", ["bbox", "segm"])
@pytest.mark.parametrize("seed", range(3))
def test_every_image_once_is_the_metric(seed, kind):
    coco, rows = synthetic_set(seed)
    check(coco, rows, kind, *drawn_metrics(coco, rows, kind, np.ones((1, 12), np.uint8)), 0)


@pytest.mark.parametrize("seed", range(3))
def test_a_draw_counts_as_repeated_images_do(seed):
    coco, rows = synthetic_set(seed)
    draws = sample_images(12, 4, seed)
    metrics, by_category = drawn_metrics(coco, rows, "bbox", draws)
    ids = sorted(coco.imgs)
    for number, draw in enumerate(draws):
        content = {"categories": coco.dataset["categories"], "images": [], "annotations": []}
        repeated = []
        for image_id, times in zip(ids, draw.tolist(), strict=True):
            for _ in range(times):
                new = len(content["images"]) + 1
                content["images"].append({**coco.imgs[image_id], "id": new})
                content["annotations"] += [
                    {**row, "image_id": new, "id": len(content["annotations"]) + 1 + n}
                    for n, row in enumerate(
                        row for row in coco.dataset["annotations"] if row["image_id"] == image_id
                    )
                ]
                repeated += [
                    {**row, "image_id": new} for row in rows if row["image_id"] == image_id
                ]
        check(coco_of(content), repeated, "bbox", metrics, by_category, number)


def test_keypoints_have_no_small_objects(data_root):
    import json

    from pycocotools.coco import COCO

    folder = data_root / "data" / "cocoeval_val2014_100" / "keypoints"
    results = Results.from_coco(json.loads((folder / "dt.json").read_text()), ["keypoints"])
    coco = COCO(folder / "gt.json")
    matched = match_coco(coco, results, "keypoints")
    metrics = resample(matched, np.ones((1, len(coco.imgs)), np.uint8)).metrics()
    wanted = evaluate_coco(coco, results, ["keypoints"])["keypoints"]
    assert metrics.keys() == {"AP", "AP50", "AP75", "APm", "APl", "AR"}
    for name, value in metrics.items():
        assert value[0] == pytest.approx(wanted[name], abs=1e-6)


def test_nothing_to_find_is_nan():
    coco, rows = synthetic_set(0)
    draws = np.zeros((2, 12), np.uint8)
    draws[1] = 1
    metrics, by_category = drawn_metrics(coco, rows, "bbox", draws)
    assert np.isnan(metrics["AP"][0])
    assert np.isnan(by_category[0]).all()
    assert interval(0.5, metrics["AP"][:1]) is None
    assert interval(0.5, metrics["AP"]) is None  # one draw tells nothing
    assert interval(0.5, np.array([0.4, np.nan, 0.6])) == pytest.approx((0.405, 0.595))
    assert interval(None, metrics["AP"]) is None


def test_intervals_end_at_nothing_and_everything():
    low, high = interval(0.98, np.linspace(0.5, 1.0, 101))
    assert (low, high) == (pytest.approx(2 * 0.98 - 0.9875), 1.0)
    assert interval(0.02, np.linspace(0.0, 0.5, 101))[0] == 0.0


def test_no_detections_are_zero():
    coco, _ = synthetic_set(0)
    metrics, _ = drawn_metrics(coco, [], "bbox", sample_images(12, 5, 0))
    assert (metrics["AP50"] == 0).all()
    assert (metrics["AR"] == 0).all()


def test_draws_are_of_as_many_images():
    draws = sample_images(50, 200, 3)
    assert draws.shape == (200, 50)
    assert (draws.sum(axis=1) == 50).all()
    assert (draws == sample_images(50, 200, 3)).all()
    assert (draws != sample_images(50, 200, 4)).any()
    assert draws.mean(axis=0) == pytest.approx(1, abs=0.4)


def test_intervals_hold_the_truth_as_often_as_they_say():
    """Sets of 80 images out of 400, whose own AP is the truth. Scores say nothing here, which makes
    the AP of few images too high: between the draws' own quantiles it lay in 79 of 100 sets."""
    coco, rows = synthetic_set(1, images=400, objects=3, crowds=0)
    matched = match_coco(coco, Results.from_coco(rows, ["bbox"]), "bbox")
    truth = resample(matched, np.ones((1, 400), np.uint8)).metrics()["AP50"][0]
    rng = np.random.default_rng(0)
    inside = []
    for _ in range(100):
        counts = rng.multinomial(80, np.full(400, 1 / 400))
        value = resample(matched, counts[None].astype(np.uint8)).metrics()["AP50"][0]
        draws = rng.multinomial(80, counts / 80, 150).astype(np.uint8)
        low, high = interval(value, resample(matched, draws).metrics()["AP50"])
        inside.append(low <= truth <= high)
    assert 0.87 <= np.mean(inside) <= 0.99


class TestCompare:
    def test_the_same_model_does_not_differ(self):
        coco, rows = synthetic_set(2)
        ap = drawn_metrics(coco, rows, "bbox", sample_images(12, 200, 0))[0]["AP"]
        found = compare(0.4, 0.4, ap, ap)
        assert found.value == 0
        assert found.is_noise

    def test_pairs_show_what_intervals_hide(self):
        """A model that is a little better everywhere: its interval overlaps the other's."""
        coco, rows = synthetic_set(3, images=60)
        better = [row for n, row in enumerate(rows) if n % 6 or row["score"] > 0.5]
        draws = sample_images(60, 400, 0)
        first, second = (drawn_metrics(coco, found, "bbox", draws)[0]["AP50"]
                         for found in (better, rows))  # fmt: skip
        wanted = [evaluate_coco(coco, Results.from_coco(found), ["bbox"])["bbox"]["AP50"]
                  for found in (better, rows)]  # fmt: skip
        difference = compare(*wanted, first, second)
        assert difference.value == pytest.approx(wanted[1] - wanted[0])
        assert difference.interval[0] <= difference.value <= difference.interval[1]
        paired = difference.interval[1] - difference.interval[0]
        low, high = interval(wanted[0], first)
        assert paired < high - low

    def test_a_worse_model_is_worse(self):
        coco, rows = synthetic_set(4, images=40)
        draws = sample_images(40, 200, 0)
        first = drawn_metrics(coco, rows, "bbox", draws)[0]["AP"]
        second = drawn_metrics(coco, rows[::3], "bbox", draws)[0]["AP"]
        found = compare(float(np.mean(first)), float(np.mean(second)), first, second)
        assert found.value < 0
        assert not found.is_noise

    def test_draws_that_all_differ_alike_tell_nothing(self):
        assert compare(0.4, 0.0, np.full(9, 0.4), np.zeros(9)).is_noise

    def test_what_is_not_measured(self):
        nan = np.full(3, np.nan)
        assert compare(None, 0.5, nan, np.ones(3)) is None
        assert compare(0.5, 0.5, np.ones(3), nan) is None
