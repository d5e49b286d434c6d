"""The benchmark of the training loader."""

import pytest

from benchmarks.data.loading import benchmark_data


@pytest.mark.slow
def test_rates_of_both_loaders(config):
    opts = ("INPUT.MIN_SIZE_TRAIN", (64,), "INPUT.MAX_SIZE_TRAIN", 96)
    rows = list(benchmark_data(config, opts, (0, 1), images=4, turns=1))
    assert [(row.dataset, row.workers) for row in rows] == [("generated", 0), ("generated", 1)]
    for row in rows:
        assert row.ratio == pytest.approx(row.detlite_images_per_s / row.torchvision_images_per_s)
