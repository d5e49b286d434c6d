"""Choose the anchors that fit the boxes of a dataset."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from .dataset_facts import Choice, DatasetFacts, Values, is_retinanet, resize_factors

_LEVELS = 5
_STRIDE = 4  # of the finest level
_RETINANET_STRIDE = 8
_OCTAVE = 2 ** (np.arange(3) / 3)  # MODEL.RETINANET.OCTAVE, SCALES_PER_OCTAVE
_MIN_IOU = 0.6  # from which an anchor fits a box
_MIN_FRACTION = 0.95  # of the boxes that anchors should fit
_RATIOS = [0.5, 1.0, 2.0]
_FACTORS = (2**0.5, 3.0)  # range of the ratio between the sizes of consecutive levels


def anchors(facts: DatasetFacts, values: Values) -> Iterator[Choice]:
    train = facts.train
    factors = resize_factors(train, values["INPUT.MIN_SIZE_TEST"], values["INPUT.MAX_SIZE_TEST"])
    boxes = train.boxes[:, 2:] * factors[train.owners, None]
    node = "RETINANET" if is_retinanet(values) else "RPN"
    sizes, ratios, fitted, first_fitted = choose_anchors(boxes, octaves=node == "RETINANET")
    low, high = np.quantile(np.sqrt(boxes.prod(axis=1)), [0.05, 0.95])
    reason = (
        f"nine in ten objects have sides of {low:.0f} to {high:.0f} pixels in the network input; "
        f"{fitted:.0%} of all objects have an IoU of at least 0.6 with an anchor shape"
    )
    if isinstance(sizes[0], list):
        reason += f", with one size per level {first_fitted:.0%}"
    yield Choice(f"MODEL.{node}.ANCHOR_SIZES", sizes, reason)
    if ratios != [0.5, 1.0, 2.0]:
        low, high = np.quantile(train.ratios, [0.05, 0.95])
        reason = f"height / width of nine in ten objects is {low:.2f} to {high:.2f}"
        yield Choice(f"MODEL.{node}.ASPECT_RATIOS", ratios, reason)


def choose_anchors(
    boxes: np.ndarray, octaves: bool = False
) -> tuple[list[Any], list[float], float, float]:
    """Choose the simplest anchors whose shapes fit nearly all boxes.

    Sizes increase evenly over the five levels of an FPN, starting near the smallest boxes. The
    candidates are, in this order, one size per level with the usual ratios, two sizes per level,
    and two sizes with ratios from the boxes.

    Args:
        boxes: [N, 2] of (width, height) in pixels of the network input.
        octaves: choose anchors of a RetinaNet. The size doubles with each level, and the two
            intermediate sizes are not part of ANCHOR_SIZES, so only ratios are chosen.

    Returns:
        ANCHOR_SIZES, ASPECT_RATIOS, the fraction of the boxes that these anchors fit (IoU of at
        least 0.6 with one at the same center), and that fraction for the first candidate.
    """
    sides = np.sqrt(boxes.prod(axis=1))
    low, high = np.quantile(sides, [0.05, 0.995])
    # Anchors smaller than two cells are rarely matched.
    stride = _RETINANET_STRIDE if octaves else _STRIDE
    first = float(np.clip(low, 2 * stride, 8 * stride))
    box_ratios = _distinct_ratios(np.quantile(boxes[:, 1] / boxes[:, 0], [0.05, 0.5, 0.95]))
    if octaves:
        sizes = [round(first * 2**level) for level in range(_LEVELS)]
        factors, candidates = _OCTAVE, [(sizes, _RATIOS), (sizes, box_ratios)]
    else:
        one, two = _sizes(first, high, 1), _sizes(first, high, 2)
        factors, candidates = np.ones(1), [(one, _RATIOS), (two, _RATIOS), (two, box_ratios)]
    tried = [
        (sizes, ratios, _fitted_fraction(boxes, np.outer(sizes, factors).ravel(), ratios))
        for sizes, ratios in candidates
    ]
    enough = [candidate for candidate in tried if candidate[2] >= _MIN_FRACTION]
    best = enough[0] if enough else max(tried, key=lambda candidate: candidate[2])
    return *best, tried[0][2]


def _sizes(first: float, last: float, per_level: int) -> list[Any]:
    """Return the sizes of each level from `first` to about `last`, as numbers if one per level."""
    steps = _LEVELS - 1 / per_level
    factor = float(np.clip((last / first) ** (1 / steps), *_FACTORS))
    levels = [
        [round(first * factor ** (level + part / per_level)) for part in range(per_level)]
        for level in range(_LEVELS)
    ]
    return [level[0] for level in levels] if per_level == 1 else levels


def _distinct_ratios(ratios: np.ndarray) -> list[float]:
    """Return the ratios in increasing order, without those close to the previous one."""
    kept: list[float] = []
    for ratio in sorted(float(f"{ratio:.2g}") for ratio in ratios):
        if not kept or ratio / kept[-1] > 1.2:
            kept.append(ratio)
    return kept


def _fitted_fraction(boxes: np.ndarray, sizes: np.ndarray, ratios: list[float]) -> float:
    """Return the fraction of the boxes that an anchor with the same center fits."""
    roots = np.sqrt(ratios)
    widths, heights = (sizes[:, None] / roots).ravel(), (sizes[:, None] * roots).ravel()
    best = np.zeros(len(boxes))
    for width, height in zip(widths, heights, strict=True):
        intersection = np.minimum(boxes[:, 0], width) * np.minimum(boxes[:, 1], height)
        union = boxes.prod(axis=1) + width * height - intersection
        best = np.maximum(best, intersection / union)
    return float((best >= _MIN_IOU).mean())
