"""Simulate how a config trains the objects of a dataset: tiles, image size, anchors.

The rules look at most objects. This shows what happens to each category and size of objects.
"""

from collections.abc import Iterator

import numpy as np
from yacs.config import CfgNode

from .anchors import MIN_IOU, best_overlaps
from .dataset_facts import DatasetFacts, resize_factors
from .image_sizes import TINY
from .statistics import DatasetStatistics

_SIDES = (32, 96)  # COCO's limits of small and medium objects
_SCALE_CHANGE = 1.5  # between training and evaluation, from which fewer objects are detected
_MAX_CATEGORIES = 12  # listed ones
# Fewer objects of a size, unlike those of a category, are no problem.
_MIN_FRACTION, _MIN_OBJECTS = 0.01, 10
_HEADER = ("", "objects", "trained", "trained at", "evaluated at", "fit an anchor")


def simulate(cfg: CfgNode, facts: DatasetFacts) -> str:
    """Describe for each category and size how a config trains the objects, and what is lost."""
    train = facts.train
    factors, test_factors = _input_factors(cfg, train)
    boxes = train.boxes[:, 2:] * factors[:, None]
    sides, test_sides = train.sides * factors, train.sides * test_factors
    trained = (train.areas >= cfg.INPUT.MIN_AREA) & (boxes >= 1).all(axis=1)
    fitting = _fits_an_anchor(cfg, boxes)
    shown = {name for name, count, _ in train.categories if count}
    problems = [
        f"{name}: no training image shows one, so it is evaluated ({count}) but not trained"
        for name, count, _ in (facts.val.categories if facts.val else ())
        if count and name not in shown
    ]
    rows: list[tuple[str, ...]] = [_HEADER]
    for name, group, min_count in _groups(train):
        count, used = int(group.sum()), group & trained
        cells = ["", "", ""]
        if used.any():
            ranges = (np.quantile(values[used], [0.05, 0.95]) for values in (sides, test_sides))
            cells = [f"{low:.0f} to {high:.0f}" for low, high in ranges]
            cells.append(f"{fitting[used].mean():.0%}")
        rows.append((name, str(count), str(used.sum()), *cells))
        if count >= min_count:
            found = _problems(count, sides[used], test_sides[used], fitting[used])
            problems += (f"{name}: {problem}" for problem in found)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]
    title = "objects of the training images (sides in pixels of the network input):"
    return "\n".join([title, *(f"  {line.rstrip()}" for line in lines), *problems])


def _groups(train: DatasetStatistics) -> Iterator[tuple[str, np.ndarray, float]]:
    """Yield the name, the objects as bool [N], and the least number that may be a problem.

    The categories with the fewest objects are listed first.
    """
    used = [k for k, (_, count, _) in enumerate(train.categories) if count]
    numbers = sorted(used, key=lambda k: train.categories[k][1])
    for number in numbers[:_MAX_CATEGORIES]:
        yield train.categories[number][0], train.labels == number, 1
    if rest := numbers[_MAX_CATEGORIES:]:
        yield f"{len(rest)} more categories", np.isin(train.labels, rest), 1
    few, (low, high) = max(_MIN_FRACTION * len(train.boxes), _MIN_OBJECTS), _SIDES
    sizes = np.digitize(train.sides, _SIDES)
    names = (f"below {low} pixels", f"{low} to {high} pixels", f"above {high} pixels")
    for size, name in enumerate(names):
        if (group := sizes == size).any():
            yield name, group, few


def _input_factors(cfg: CfgNode, train: DatasetStatistics) -> list[np.ndarray]:
    """Return the factors by which training and evaluation resize each object, float64 [N]."""
    inputs, factors = cfg.INPUT, []
    size = sorted(inputs.MIN_SIZE_TRAIN)[len(inputs.MIN_SIZE_TRAIN) // 2]
    for tile, short, longest in (
        (inputs.TILE, size, inputs.MAX_SIZE_TRAIN),
        (cfg.TEST.TILE, inputs.MIN_SIZE_TEST, inputs.MAX_SIZE_TEST),
    ):
        images = train.tiled(tile) if tile else train
        factors.append(resize_factors(images, short, longest)[images.owners])
    return factors


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
        yield (
            f"{count - len(sides)} of {count} objects are never trained, because they are smaller "
            "than INPUT.MIN_AREA or than a pixel of the network input"
        )
        return
    side, test_side = float(np.median(sides)), float(np.median(test_sides))
    if side < TINY:
        yield (
            f"half of the objects have sides below {side:.1f} pixels in the network input and will "
            f"hardly be detected. They need {TINY} or more: use larger images "
            "(INPUT.MIN_SIZE_TRAIN, INPUT.MIN_SIZE_TEST), or tiles (INPUT.TILE, TEST.TILE)"
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
