"""Simulate how a config trains the objects of a dataset: tiles, image size, anchors.

The rules look at most objects. This shows what happens to each category and size of objects.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from yacs.config import CfgNode

from .anchors import MIN_IOU, best_overlaps
from .dataset_facts import DatasetFacts, resize_factors
from .statistics import DatasetStatistics

_SIDES = (32, 96)  # COCO's limits of small and medium objects
_MIN_SIDE = 8  # pixels of the network input: smaller objects are hardly detected
_SCALE_CHANGE = 1.5  # between training and evaluation, from which fewer objects are detected
_MAX_CATEGORIES = 12  # listed ones
# Fewer objects of a size, unlike those of a category, are no problem.
_MIN_FRACTION, _MIN_OBJECTS = 0.01, 10
_HEADER = ("", "objects", "trained", "trained at", "evaluated at", "fit an anchor")


@dataclass(frozen=True)
class _Objects:
    """N objects as training sees them.

    Attributes:
        trained: bool [N], False for ignored regions.
        sides: sqrt(width * height) in the network input of training, float64 [N].
        test_sides: the same in evaluation.
        overlaps: IoU with the best anchor shape, float64 [N].
    """

    trained: np.ndarray
    sides: np.ndarray
    test_sides: np.ndarray
    overlaps: np.ndarray


def simulate(cfg: CfgNode, facts: DatasetFacts) -> str:
    """Describe for each category and size how a config trains the objects, and what is lost."""
    train = facts.train
    objects = _simulate(cfg, train)
    trained = {name for name, count, _ in train.categories if count}
    problems = [
        f"{name}: no training image shows one, so it is evaluated ({count}) but not trained"
        for name, count, _ in (facts.val.categories if facts.val else ())
        if count and name not in trained
    ]
    rows = []
    few = max(_MIN_FRACTION * len(objects.trained), _MIN_OBJECTS)
    groups = [(*group, 1.0) for group in _categories(train)]
    groups += [(*group, few) for group in _sizes(train)]
    for name, selected, min_count in groups:
        if selected.any():
            rows.append(_row(name, objects, selected))
            if selected.sum() >= min_count:
                problems += (f"{name}: {problem}" for problem in _problems(objects, selected))
    columns = [*zip(_HEADER, *rows, strict=True)]
    widths = [max(map(len, column)) for column in columns]
    lines = [
        f"{row[0]:<{widths[0]}}  "
        + "  ".join(f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))
        for row in (_HEADER, *rows)
    ]
    title = "objects of the training images (sides in pixels of the network input):"
    return "\n".join([title, *(f"  {line.rstrip()}" for line in lines), *problems])


def _categories(train: DatasetStatistics) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the categories with the fewest objects, and their objects, bool [N]."""
    used = [k for k, (_, count, _) in enumerate(train.categories) if count]
    numbers = sorted(used, key=lambda k: train.categories[k][1])
    for number in numbers[:_MAX_CATEGORIES]:
        yield train.categories[number][0], train.labels == number
    if len(numbers) > _MAX_CATEGORIES:
        others = np.isin(train.labels, numbers[_MAX_CATEGORIES:])
        yield f"{len(numbers) - _MAX_CATEGORIES} more categories", others


def _sizes(train: DatasetStatistics) -> Iterator[tuple[str, np.ndarray]]:
    low, high = _SIDES
    yield f"below {low} pixels", train.sides < low
    yield f"{low} to {high} pixels", (train.sides >= low) & (train.sides < high)
    yield f"above {high} pixels", train.sides >= high


def _simulate(cfg: CfgNode, train: DatasetStatistics) -> _Objects:
    inputs = cfg.INPUT
    facts = train.tiled(inputs.TILE, inputs.TILE_OVERLAP) if inputs.TILE else train
    size = sorted(inputs.MIN_SIZE_TRAIN)[len(inputs.MIN_SIZE_TRAIN) // 2]
    factors = resize_factors(facts, size, inputs.MAX_SIZE_TRAIN)[facts.owners]
    test = train.tiled(cfg.TEST.TILE, cfg.TEST.TILE_OVERLAP) if cfg.TEST.TILE else train
    test_factors = resize_factors(test, inputs.MIN_SIZE_TEST, inputs.MAX_SIZE_TEST)[test.owners]
    boxes = train.boxes[:, 2:] * factors[:, None]
    if cfg.MODEL.META_ARCHITECTURE == "RetinaNet":
        node = cfg.MODEL.RETINANET
        octaves = 2 ** (np.arange(node.SCALES_PER_OCTAVE) / node.SCALES_PER_OCTAVE)
        sizes = np.outer(node.ANCHOR_SIZES, octaves).ravel()
    else:
        node = cfg.MODEL.RPN
        sizes = np.concatenate([np.atleast_1d(level) for level in node.ANCHOR_SIZES])
    return _Objects(
        (train.areas >= inputs.MIN_AREA) & (boxes >= 1).all(axis=1),
        np.sqrt(boxes.prod(axis=1)),
        train.sides * test_factors,
        best_overlaps(boxes, sizes, node.ASPECT_RATIOS),
    )


def _row(name: str, objects: _Objects, selected: np.ndarray) -> tuple[str, ...]:
    trained = selected & objects.trained
    count = int(trained.sum())
    if not count:
        return name, str(int(selected.sum())), "0", "", "", ""
    fitting = (objects.overlaps[trained] >= MIN_IOU).mean()
    sides = [_range(values[trained]) for values in (objects.sides, objects.test_sides)]
    return name, str(int(selected.sum())), str(count), *sides, f"{fitting:.0%}"


def _range(values: np.ndarray) -> str:
    low, high = np.quantile(values, [0.05, 0.95])
    return f"{low:.0f} to {high:.0f}"


def _problems(objects: _Objects, selected: np.ndarray) -> Iterator[str]:
    """Yield what keeps most objects of a group from being trained or detected."""
    trained = selected & objects.trained
    if 2 * trained.sum() < selected.sum():
        yield (
            f"{selected.sum() - trained.sum()} of {selected.sum()} objects are never trained, "
            "because they are smaller than INPUT.MIN_AREA or than a pixel of the network input"
        )
        return
    side, test_side = (float(np.median(x[trained])) for x in (objects.sides, objects.test_sides))
    if side < _MIN_SIDE:
        yield (
            f"half of the objects have sides below {side:.1f} pixels in the network input and will "
            f"hardly be detected. They need {_MIN_SIDE} or more: use larger images "
            "(INPUT.MIN_SIZE_TRAIN, INPUT.MIN_SIZE_TEST), or tiles (INPUT.TILE, TEST.TILE)"
        )
    if not 1 / _SCALE_CHANGE < test_side / max(side, 1e-9) < _SCALE_CHANGE:
        yield (
            f"trained at {side:.0f} pixels, but evaluated at {test_side:.0f}: make "
            "INPUT.MAX_SIZE_TRAIN and INPUT.MAX_SIZE_TEST, and the tiles, similar"
        )
    fitting = float((objects.overlaps[trained] >= MIN_IOU).mean())
    if fitting < 0.5:
        yield (
            f"only {fitting:.0%} of the objects fit an anchor: add sizes or shapes to "
            "MODEL.RPN.ANCHOR_SIZES and ASPECT_RATIOS"
        )
