"""Rules for the model: anchor shapes that fit boxes."""

import numpy as np
import pytest

from detlite.apps.autoconfig.anchors import best_overlaps, choose_anchors


def choose(boxes):
    return choose_anchors(boxes, np.zeros(len(boxes), int))


def test_the_simplest_anchors_that_fit_are_chosen():
    """One size per level, then two sizes, then ratios from the boxes."""
    sides = np.repeat([16.0, 32, 64, 128, 256], 20)
    boxes = np.stack([sides, sides], axis=1)
    assert choose(boxes) == ([16, 32, 64, 128, 256], [0.5, 1.0, 2.0], 1)
    rng = np.random.default_rng(0)
    sides = np.exp(rng.uniform(np.log(10), np.log(500), 2000))
    sizes, ratios, fitted = choose(np.stack([sides, sides], axis=1))
    assert [len(level) for level in sizes] == [2] * 5
    assert np.all(np.diff(np.ravel(sizes)) > 0)
    assert 400 < sizes[-1][-1] < 520
    assert ratios == [0.5, 1.0, 2.0]
    assert fitted >= 0.95
    widths = np.exp(rng.uniform(np.log(60), np.log(300), 500))
    boxes = np.stack([widths, widths * rng.uniform(0.1, 0.25, 500)], axis=1)
    _, ratios, fitted = choose(boxes)
    assert max(ratios) < 0.3
    assert fitted > 0.5


@pytest.mark.parametrize("rare", [(40.0, 480.0), (900.0, 900.0), (18.0, 18.0)])
def test_anchors_fit_each_category(rare):
    """One box in 200 is a pole, or larger or smaller than all others."""
    sides = np.exp(np.random.default_rng(0).uniform(np.log(40), np.log(80), 2000))
    boxes = np.concatenate([np.stack([sides, sides], axis=1), [rare] * 10])
    labels = np.repeat([0, 1], [2000, 10])
    sizes, ratios, fitted = choose_anchors(boxes, labels)
    overlaps = best_overlaps(boxes, np.ravel(sizes), ratios)
    assert (overlaps[2000:] >= 0.6).all()
    assert fitted >= 0.95


@pytest.mark.parametrize("boxes", [[[7.0, 9.0]], [[1.0, 1.0]], [[4000.0, 3.0], [5.0, 600.0]]])
def test_single_boxes_of_any_shape(boxes):
    sizes, ratios, _ = choose(np.array(boxes))
    flat = np.ravel(sizes)
    assert len(sizes) == 5
    assert flat.min() >= 8
    assert all(ratio > 0 for ratio in ratios)
