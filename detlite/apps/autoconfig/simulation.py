"""Simulate how a config trains the objects of a dataset: tiles, image size, anchors.

The rules look at most objects. This shows what happens to each category and size of objects.
"""

from collections.abc import Iterator

import numpy as np
from yacs.config import CfgNode

from detlite.apps.doctor.machine import aligned

from .anchors import MIN_IOU, best_overlaps
from .dataset_facts import DatasetFacts, resize_factors
from .image_sizes import TINY
from .statistics import DatasetStatistics

_SIDES = {0: "below 32 pixels", 32: "32 to 96 pixels", 96: "above 96 pixels"}  # as in COCO
_SCALE_CHANGE = 1.5  # between training and evaluation, from which fewer objects are detected
_MAX_CATEGORIES = 12  # listed ones
# Fewer objects of a size, unlike those of a category, are no problem.
_MIN_FRACTION, _MIN_OBJECTS = 0.01, 10
_HEADER = ["", "objects", "trained", "trained at", "evaluated at", "fit an anchor"]


def simulate(cfg: CfgNode, facts: DatasetFacts) -> str:
    """Describe for each category and size how a config trains the objects, and what is lost."""
    train, inputs = facts.train, cfg.INPUT
    size = sorted(inputs.MIN_SIZE_TRAIN)[len(inputs.MIN_SIZE_TRAIN) // 2]
    factors = _input_factors(train, inputs.TILE, size, inputs.MAX_SIZE_TRAIN)
    test_sides = train.sides * _input_factors(
        train, cfg.TEST.TILE, inputs.MIN_SIZE_TEST, inputs.MAX_SIZE_TEST
    )
    boxes, sides = train.boxes[:, 2:] * factors[:, None], train.sides * factors
    trained = (train.areas >= inputs.MIN_AREA) & (boxes >= 1).all(axis=1)
    fitting = _fits_an_anchor(cfg, boxes)
    shown = {name for name, count, _ in train.categories if count}
    problems = [
        f"{name}: no training image shows one, so it is evaluated ({count}) but not trained"
        for name, count, _ in (facts.val.categories if facts.val else ())
        if count and name not in shown
    ]
    rows = [_HEADER]
    for name, group, min_count in _groups(train):
        count, used = int(group.sum()), group & trained
        cells = [name, str(count), str(used.sum()), "", "", ""]
        if used.any():
            ranges = (np.quantile(values[used], [0.05, 0.95]) for values in (sides, test_sides))
            cells[3:] = [f"{low:.0f} to {high:.0f}" for low, high in ranges]
            cells.append(f"{fitting[used].mean():.0%}")
        rows.append(cells)
        if count >= min_count:
            found = _problems(count, sides[used], test_sides[used], fitting[used])
            problems += (f"{name}: {problem}" for problem in found)
    title = "objects of the training images (sides in pixels of the network input):"
    return "\n".join([title, *(f"  {line}" for line in aligned(rows)), *problems])


def _groups(train: DatasetStatistics) -> Iterator[tuple[str, np.ndarray, float]]:
    """Yield the name, the objects as bool [N], and the least number that may be a problem.

    The categories with the fewest objects are listed first.
    """
    counts = [count for _, count, _ in train.categories]
    numbers = sorted((k for k, count in enumerate(counts) if count), key=counts.__getitem__)
    for number in numbers[:_MAX_CATEGORIES]:
        yield train.names[number], train.labels == number, 1
    if rest := numbers[_MAX_CATEGORIES:]:
        yield f"{len(rest)} more categories", np.isin(train.labels, rest), 1
    few = max(_MIN_FRACTION * len(train.boxes), _MIN_OBJECTS)
    sizes = np.digitize(train.sides, [*_SIDES]) - 1
    for size, name in enumerate(_SIDES.values()):
        if (group := sizes == size).any():
            yield name, group, few


def _input_factors(train: DatasetStatistics, tile: int, short: int, longest: int) -> np.ndarray:
    """Return the factor by which each object is resized, float64 [N]."""
    images = train.tiled(tile) if tile else train
    return resize_factors(images, short, longest)[images.owners]


def _fits_an_anchor(cfg: CfgNode, boxes: np.ndarray) -> np.ndarray:
    """Return bool [N]: an anchor shape has the IoU MIN_IOU with the box (width, height)."""
    node = cfg.MODEL.RPN
    sizes = np.concatenate([np.atleast_1d(level) for level in node.ANCHOR_SIZES])
    if cfg.MODEL.META_ARCHITECTURE == "RetinaNet":
        node = cfg.MODEL.RETINANET
        octaves = 2 ** (np.arange(node.SCALES_PER_OCTAVE) / node.SCALES_PER_OCTAVE)
        sizes = np.outer(node.ANCHOR_SIZES, octaves).ravel()
    return best_overlaps(boxes, sizes, node.ASPECT_RATIOS) >= MIN_IOU


def _problems(
    count: int, sides: np.ndarray, test_sides: np.ndarray, fitting: np.ndarray
) -> Iterator[str]:
    """Yield what keeps most of `count` objects from being trained or detected."""
    if 2 * len(sides) < count:
        lost = f"{count - len(sides)} of {count} objects are never trained"
        yield f"{lost}: they are smaller than INPUT.MIN_AREA or a pixel of the network input"
        return
    side, test_side = float(np.median(sides)), float(np.median(test_sides))
    if side < TINY:
        yield (
            f"half of the objects have sides below {side:.1f} pixels in the network input. They "
            f"need {TINY}: use larger images (INPUT.MIN_SIZE_TRAIN, MIN_SIZE_TEST), or tiles (TILE)"
        )
    if not 1 / _SCALE_CHANGE < test_side / max(side, 1e-9) < _SCALE_CHANGE:
        yield (
            f"trained at {side:.0f} pixels, but evaluated at {test_side:.0f}: make "
            "INPUT.MAX_SIZE_TRAIN and INPUT.MAX_SIZE_TEST, and the tiles, similar"
        )
    if fitting.mean() < 0.5:
        yield (
            f"only {fitting.mean():.0%} of the objects fit an anchor: add sizes or shapes to "
            "MODEL.RPN.ANCHOR_SIZES and ASPECT_RATIOS"
        )
