"""The evaluation benchmark on a few images."""

import numpy as np
import pytest

from benchmarks.data.evaluation import benchmark_evaluation
from benchmarks.data.generated_results import CATEGORIES, generate


def test_generated_data_have_the_statistics_of_coco():
    content, results = generate(60, 20)
    rows = content["annotations"]
    assert len(rows) == pytest.approx(60 * 7.3, rel=0.4)
    assert len(results) == 60 * 20
    areas = np.array([row["area"] for row in rows])
    assert (areas < 32**2).mean() == pytest.approx(0.41, abs=0.1)
    assert (areas > 96**2).mean() == pytest.approx(0.24, abs=0.1)
    assert 0 < sum(row["iscrowd"] for row in rows) < 0.05 * len(rows)
    assert {len(row["segmentation"]) for row in rows if not row["iscrowd"]} == {1, 2, 3}
    assert len(content["categories"]) == CATEGORIES
    assert generate(3, 5)[0] == generate(3, 5)[0] != generate(3, 5, seed=1)[0]


@pytest.mark.slow
def test_metrics_agree_with_other_libraries():
    rows = list(benchmark_evaluation(images=8, detections=20))
    for kind in ("bbox", "segm"):
        own, *others = [row for row in rows if row.kind == kind]
        assert (own.library, others[0].library) == ("detlite", "pycocotools")
        assert (own.images, own.detections, own.ratio) == (8, 20, 1)
        for row in (own, *others):
            assert row.ratio == row.seconds / own.seconds
            assert row.peak_mb > 50
            assert row.difference < 1e-9
