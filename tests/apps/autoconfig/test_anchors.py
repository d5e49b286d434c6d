"""Rules for the model: anchor shapes that fit boxes."""

import numpy as np
import pytest

from detlite.apps.autoconfig.anchors import best_overlaps, choose_anchors


def test_boxes_that_fit_the_default_anchors_keep_them():
    sides = np.repeat([16.0, 32, 64, 128, 256], 20)
    sizes, ratios, fitted, first_fitted = choose_anchors(np.stack([sides, sides], axis=1))
    assert sizes == [16, 32, 64, 128, 256]
    assert ratios == [0.5, 1.0, 2.0]
    assert fitted == first_fitted == 1


def test_boxes_between_the_sizes_get_two_sizes_per_level():
    rng = np.random.default_rng(0)
    sides = np.exp(rng.uniform(np.log(10), np.log(500), 2000))
    sizes, ratios, fitted, first_fitted = choose_anchors(np.stack([sides, sides], axis=1))
    assert [len(level) for level in sizes] == [2] * 5
    assert np.all(np.diff(np.ravel(sizes)) > 0)
    assert 400 < sizes[-1][-1] < 520
    assert ratios == [0.5, 1.0, 2.0]
    assert first_fitted < 0.95 <= fitted


def test_flat_boxes_get_their_own_ratios():
    rng = np.random.default_rng(0)
    widths = np.exp(rng.uniform(np.log(60), np.log(300), 500))
    boxes = np.stack([widths, widths * rng.uniform(0.1, 0.25, 500)], axis=1)
    _, ratios, fitted, first_fitted = choose_anchors(boxes)
    assert max(ratios) < 0.3
    assert first_fitted < 0.5 < fitted


@pytest.mark.parametrize("rare", [(40.0, 480.0), (900.0, 900.0), (18.0, 18.0)])
@pytest.mark.parametrize("octaves", [False, True])
def test_anchors_fit_each_category(rare, octaves):
    """One box in 200 is a pole, or larger or smaller than all others."""
    sides = np.exp(np.random.default_rng(0).uniform(np.log(40), np.log(80), 2000))
    boxes = np.concatenate([np.stack([sides, sides], axis=1), [rare] * 10])
    labels = np.repeat([0, 1], [2000, 10])
    sizes, ratios, fitted, _ = choose_anchors(boxes, octaves, labels)
    factors = 2 ** (np.arange(3) / 3) if octaves else np.ones(1)
    overlaps = best_overlaps(boxes, np.outer(np.ravel(sizes), factors).ravel(), ratios)
    assert (overlaps[2000:] >= 0.6).all()
    assert fitted >= 0.95


@pytest.mark.parametrize("boxes", [[[7.0, 9.0]], [[1.0, 1.0]], [[4000.0, 3.0], [5.0, 600.0]]])
def test_single_boxes_of_any_shape(boxes):
    sizes, ratios, _, _ = choose_anchors(np.array(boxes))
    flat = np.ravel(sizes)
    assert len(sizes) == 5
    assert flat.min() >= 8
    assert all(ratio > 0 for ratio in ratios)
