"""Choose the anchors that fit the boxes of a dataset."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from .dataset_facts import DatasetFacts, Rules, Values, resize_factors

_LEVELS = 5
_STRIDE = 4  # of the finest level
MIN_IOU = 0.6  # from which an anchor fits a box
_MIN_FRACTION = 0.95  # of the boxes that anchors should fit
_MIN_CATEGORY = 0.5  # of the boxes of each category
_RATIOS = [0.5, 1.0, 2.0]
Anchors = tuple[list[Any], list[float], float]  # see `choose_anchors`
_FACTORS = (2**0.5, 3.0)  # range of the ratio between the sizes of consecutive levels


def rules(facts: DatasetFacts, values: Values) -> Rules:
    """Choose the sizes of anchors, and their ratios unless the usual ones fit."""
    train = facts.train
    factors = resize_factors(train, values["INPUT.MIN_SIZE_TEST"], values["INPUT.MAX_SIZE_TEST"])
    boxes = train.boxes[:, 2:] * factors[train.owners, None]
    sizes, ratios, fitted = choose_anchors(boxes, train.labels)
    low, high = np.quantile(np.sqrt(boxes.prod(axis=1)), [0.05, 0.95])
    yield ("MODEL.RPN.ANCHOR_SIZES", sizes,
           f"nine in ten objects have sides of {low:.0f} to {high:.0f} pixels in the network "
           f"input; {fitted:.0%} of all objects have an IoU of at least 0.6 with an anchor "
           "shape")  # fmt: skip
    if ratios != _RATIOS:
        low, high = np.quantile(train.ratios, [0.05, 0.95])
        reason = f"height / width of nine in ten objects is {low:.2f} to {high:.2f}"
        yield "MODEL.RPN.ASPECT_RATIOS", ratios, reason


def choose_anchors(boxes: np.ndarray, labels: np.ndarray) -> Anchors:
    """Choose the simplest anchors whose shapes fit nearly all boxes.

    Sizes increase evenly over the five levels of an FPN, starting near the smallest boxes. The
    candidates are, in this order, one size per level with the usual ratios, two sizes per level,
    and two sizes with ratios from the boxes. They should fit half of each category, too.

    Args:
        boxes: [N, 2] of (width, height) in pixels of the network input.
        labels: [N].

    Returns:
        ANCHOR_SIZES, ASPECT_RATIOS, and the fraction of the boxes that these anchors fit (IoU of at
        least 0.6 with one at the same center).
    """
    sides, ratios = np.sqrt(boxes.prod(axis=1)), boxes[:, 1] / boxes[:, 0]
    categories = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    median_sides, median_ratios = (
        [float(np.median(values[rows])) for rows in categories] for values in (sides, ratios)
    )
    low, high = np.quantile(sides, [0.05, 0.995])
    # Anchors smaller than two cells are rarely matched.
    first = float(np.clip(min(low, *median_sides), 2 * _STRIDE, 8 * _STRIDE))
    extremes = np.quantile(ratios, [0.05, 0.5, 0.95])
    box_ratios = _distinct_ratios([*extremes, min(median_ratios), max(median_ratios)])
    one, two = (_sizes(first, max(high, *median_sides), count) for count in (1, 2))
    tried = []
    for levels, shapes in ((one, _RATIOS), (two, _RATIOS), (two, box_ratios)):
        fits = best_overlaps(boxes, np.ravel(levels), shapes) >= MIN_IOU
        of_categories = min(float(fits[rows].mean()) for rows in categories)
        score = min(float(fits.mean()) / _MIN_FRACTION, of_categories / _MIN_CATEGORY, 1.0)
        tried.append((score, levels, shapes, float(fits.mean())))
    return max(tried, key=itemgetter(0))[1:]  # the first of the best ones


def _sizes(first: float, last: float, per_level: int) -> list[Any]:
    """Return the sizes of each level from `first` to about `last`, as numbers if one per level."""
    steps = _LEVELS - 1 / per_level
    factor = float(np.clip((last / first) ** (1 / steps), *_FACTORS))
    levels = [
        [round(first * factor ** (level + part / per_level)) for part in range(per_level)]
        for level in range(_LEVELS)
    ]
    return [level[0] for level in levels] if per_level == 1 else levels


def _distinct_ratios(ratios: Sequence[float]) -> list[float]:
    """Return the ratios in increasing order, without those close to the previous one."""
    kept: list[float] = []
    for ratio in sorted(float(f"{ratio:.2g}") for ratio in ratios):
        if not kept or ratio / kept[-1] > 1.2:
            kept.append(ratio)
    return kept


def best_overlaps(boxes: np.ndarray, sizes: np.ndarray, ratios: Sequence[float]) -> np.ndarray:
    """Return the IoU of boxes [N, 2] with the best anchor at the same center, float64 [N]."""
    roots = np.sqrt(ratios)
    widths, heights = (sizes[:, None] / roots).ravel(), (sizes[:, None] * roots).ravel()
    best = np.zeros(len(boxes))
    for width, height in zip(widths, heights, strict=True):
        intersection = np.minimum(boxes[:, 0], width) * np.minimum(boxes[:, 1], height)
        union = boxes.prod(axis=1) + width * height - intersection
        best = np.maximum(best, intersection / union)
    return best
