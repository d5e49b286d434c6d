"""Bootstrap: samples equal datasets with repeated images, and intervals have 95 % coverage."""

import numpy as np
import pytest

from detlite.apps.report.analysis.bootstrap import (
    BootstrapMetrics,
    MatchedDetections,
    compare,
    interval,
    sample_images,
)
from detlite.evaluation import Results
from detlite.evaluation.coco import category_names, match_coco, measure_coco
from tests.builders import make_coco
from tests.evaluation.synthetic_detections import synthetic_dataset

NAMES = {"AP": "AP", "AP50": "AP50", "AP75": "AP75", "APs": "APs", "APm": "APm", "APl": "APl",
         "AR": "AR100"}  # fmt: skip


def sampled_metrics(coco, rows, kind, samples):
    results = Results.from_coco(rows, ("bbox", "segm"))
    matched = MatchedDetections(match_coco(coco, results, kind), coco, results, kind)
    sampled = BootstrapMetrics(matched, samples)
    return sampled.metrics(), sampled.by_category()


def check(coco, rows, kind, metrics, by_category, sample):
    """Compare the metrics of one sample with those of the whole dataset."""
    results = Results.from_coco(rows, ("bbox", "segm"))
    expected = measure_coco(coco, results, [kind], 100)[kind]
    by_name = dict(zip(category_names(coco), by_category[sample], strict=True))
    pairs = [(metrics[name][sample], expected[coco_name]) for name, coco_name in NAMES.items()]
    pairs += [(value, expected["per_category"][name]) for name, value in by_name.items()]
    found, values = np.array(pairs, np.float64).T  # NaN for None
    assert found == pytest.approx(values, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize(("kind", "seed"), [("bbox", 0), ("bbox", 1), ("segm", 2)])
def test_samples_equal_repeated_images(kind, seed):
    coco, rows = synthetic_dataset(seed)
    samples = np.concatenate([sample_images(12, 3, seed), np.ones((1, 12), np.uint8)])
    metrics, by_category = sampled_metrics(coco, rows, kind, samples)
    ids = sorted(coco.imgs)
    for number, sample in enumerate(samples):
        content = {"categories": coco.dataset["categories"], "images": [], "annotations": []}
        repeated = []
        for image_id in np.repeat(ids, sample).tolist():
            new = len(content["images"]) + 1
            content["images"].append({**coco.imgs[image_id], "id": new})
            for source, copies in (
                (coco.dataset["annotations"], content["annotations"]), (rows, repeated),
            ):  # fmt: skip
                copies += [
                    {**row, "image_id": new} for row in source if row["image_id"] == image_id
                ]
        for n, row in enumerate(content["annotations"], start=1):
            row["id"] = n
        check(make_coco(content), repeated, kind, metrics, by_category, number)


def test_no_objects_or_no_detections():
    coco, rows = synthetic_dataset(0)
    samples = np.zeros((2, 12), np.uint8)
    samples[1] = 1
    metrics, by_category = sampled_metrics(coco, rows, "bbox", samples)
    assert np.isnan(metrics["AP"][0])
    assert np.isnan(by_category[0]).all()
    metrics, _ = sampled_metrics(coco, [], "bbox", sample_images(12, 5, 0))
    assert (metrics["AP50"] == 0).all()
    assert (metrics["AR"] == 0).all()


@pytest.mark.parametrize(
    ("value", "sampled", "expected"),
    [
        (0.5, [0.4, np.nan, 0.6], (0.405, 0.595)),
        (0.5, [np.nan, 0.4], None),  # a single sample
        (0.5, [np.nan], None),
        (None, [0.4, 0.6], None),
        (0.98, np.linspace(0.5, 1.0, 101), (2 * 0.98 - 0.9875, 1.0)),  # clipped
        (0.02, np.linspace(0.0, 0.5, 101), (0.0, 2 * 0.02 - 0.0125)),
    ],
)
def test_interval(value, sampled, expected):
    found = interval(value, np.array(sampled))
    assert found is expected or found == pytest.approx(expected)


def test_sample_images():
    samples = sample_images(50, 200, 3)
    assert samples.shape == (200, 50)
    assert (samples.sum(axis=1) == 50).all()
    assert (samples == sample_images(50, 200, 3)).all()
    assert samples.mean(axis=0) == pytest.approx(1, abs=0.4)


@pytest.mark.parametrize("sampled", [np.full(9, 0.4), np.linspace(0.3, 0.5, 9)])
@pytest.mark.parametrize("value", [0.0, 0.4])
def test_constant_difference_is_noise(value, sampled):
    difference = compare(0.4, value, sampled, sampled + value - 0.4)
    assert difference.value == value - 0.4
    assert difference.is_noise


def test_difference_of_two_models():
    """The interval of the difference is narrower than that of one model."""
    coco, rows = synthetic_dataset(4, images=40)
    samples = sample_images(40, 200, 0)
    most = [row for n, row in enumerate(rows) if n % 6]
    first, similar, worse = (
        sampled_metrics(coco, kept, "bbox", samples)[0]["AP"] for kept in (rows, most, rows[::3])
    )
    value = float(np.mean(first))
    difference = compare(value, float(np.mean(worse)), first, worse)
    assert difference.interval[0] <= difference.value <= difference.interval[1] < 0
    assert not difference.is_noise
    low, high = compare(value, float(np.mean(similar)), first, similar).interval
    assert high - low < np.diff(interval(value, first))
    nan = np.full(3, np.nan)
    assert compare(None, 0.5, nan, np.ones(3)) is None
    assert compare(0.5, 0.5, np.ones(3), nan) is None
