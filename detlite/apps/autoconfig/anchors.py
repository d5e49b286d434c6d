"""Shapes of anchors that fit the boxes of a data set."""

from __future__ import annotations

from typing import Any

import numpy as np

_LEVELS = 5
_STRIDE = 4  # of the finest level
_RETINANET_STRIDE = 8
_OCTAVE = 2 ** (np.arange(3) / 3)  # MODEL.RETINANET.OCTAVE, SCALES_PER_OCTAVE
_WANTED = 0.6  # IoU
_ENOUGH = 0.95  # of the boxes that an anchor's shape fits so well
_RATIOS = [0.5, 1.0, 2.0]
_FACTORS = (2**0.5, 3.0)  # from a level to the next


def choose_anchors(
    boxes: np.ndarray, octaves: bool = False
) -> tuple[list[Any], list[float], float, float]:
    """The simplest anchors whose shapes fit nearly all boxes.

    Sizes rise evenly over the five levels of an FPN, from near the smallest boxes. First one size
    a level and the usual ratios are tried, then two sizes, then ratios of the boxes' own.

    Args:
        boxes: [N, 2] of (width, height) in pixels of the image.
        octaves: those of a RetinaNet: each level's size is twice the one before, with two more on
            the way there, which are not among ANCHOR_SIZES; only ratios are tried.

    Returns:
        ANCHOR_SIZES, ASPECT_RATIOS, the part of the boxes that such an anchor fits (an IoU of 0.6
        with one of the same centre), and that part for the first that was tried.
    """
    sides = np.sqrt(boxes.prod(axis=1))
    low, high = np.quantile(sides, [0.05, 0.995])
    # Anchors below two cells are hardly matched.
    stride = _RETINANET_STRIDE if octaves else _STRIDE
    first = float(np.clip(low, 2 * stride, 8 * stride))
    own = _distinct(np.quantile(boxes[:, 1] / boxes[:, 0], [0.05, 0.5, 0.95]))
    if octaves:
        sizes = [round(first * 2**level) for level in range(_LEVELS)]
        factors, candidates = _OCTAVE, [(sizes, _RATIOS), (sizes, own)]
    else:
        one, two = _sizes(first, high, 1), _sizes(first, high, 2)
        factors, candidates = np.ones(1), [(one, _RATIOS), (two, _RATIOS), (two, own)]
    tried = [
        (sizes, ratios, _share(boxes, np.outer(sizes, factors).ravel(), ratios))
        for sizes, ratios in candidates
    ]
    best = next((one for one in tried if one[2] >= _ENOUGH), max(tried, key=lambda one: one[2]))
    return *best, tried[0][2]


def _sizes(first: float, last: float, count: int) -> list[Any]:
    """Each level's sizes from `first` to about `last`: a list of `count`, or of one a number."""
    steps = _LEVELS - 1 / count
    factor = float(np.clip((last / first) ** (1 / steps), *_FACTORS))
    levels = [
        [round(first * factor ** (level + part / count)) for part in range(count)]
        for level in range(_LEVELS)
    ]
    return [level[0] for level in levels] if count == 1 else levels


def _distinct(ratios: np.ndarray) -> list[float]:
    """Ratios from low to high, but for those that hardly differ from the one before."""
    kept: list[float] = []
    for ratio in sorted(float(f"{ratio:.2g}") for ratio in ratios):
        if not kept or ratio / kept[-1] > 1.2:
            kept.append(ratio)
    return kept


def _share(boxes: np.ndarray, sizes: np.ndarray, ratios: list[float]) -> float:
    """The part of the boxes with an IoU of 0.6 with some anchor of the same centre."""
    roots = np.sqrt(ratios)
    widths, heights = (sizes[:, None] / roots).ravel(), (sizes[:, None] * roots).ravel()
    best = np.zeros(len(boxes))
    for width, height in zip(widths, heights, strict=True):
        inner = np.minimum(boxes[:, 0], width) * np.minimum(boxes[:, 1], height)
        outer = boxes.prod(axis=1) + width * height - inner
        best = np.maximum(best, inner / outer)
    return float((best >= _WANTED).mean())
