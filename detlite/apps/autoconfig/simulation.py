"""Simulate how a config trains the objects of a dataset: tiles, image size, anchors.

The rules look at most objects. This finds the categories and sizes of objects that they miss.
"""

from collections.abc import Iterator

import numpy as np
from yacs.config import CfgNode

from .anchors import MIN_IOU, best_overlaps
from .dataset_facts import DatasetFacts, resize_factors
from .image_sizes import TINY
from .statistics import DatasetStatistics

_SIDES = {0: "below 32 pixels", 32: "32 to 96 pixels", 96: "above 96 pixels"}  # as in COCO
_SCALE_CHANGE = 1.5  # between training and evaluation, from which fewer objects are detected
_MAX_PROBLEMS = 20  # listed ones
# Fewer objects of a size, unlike those of a category, are no problem.
_MIN_FRACTION, _MIN_OBJECTS = 0.01, 10


def lost_objects(cfg: CfgNode, facts: DatasetFacts) -> list[str]:
    """Describe the categories and sizes of objects that a config does not train or detect."""
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
    groups = [(name, train.labels == number, 1.0) for number, name in enumerate(train.names)]
    few = max(_MIN_FRACTION * len(train.boxes), _MIN_OBJECTS)
    sizes = np.digitize(train.sides, [*_SIDES]) - 1
    groups += [(name, sizes == size, few) for size, name in enumerate(_SIDES.values())]
    for name, group, min_count in groups:
        count, used = int(group.sum()), group & trained
        if count >= min_count:
            found = _problems(count, sides[used], test_sides[used], fitting[used])
            problems += (f"{name}: {problem}" for problem in found)
    if more := problems[_MAX_PROBLEMS:]:
        problems[_MAX_PROBLEMS:] = [f"and {len(more)} more"]
    return problems


def _input_factors(train: DatasetStatistics, tile: int, short: int, longest: int) -> np.ndarray:
    """Return the factor by which each object is resized, float64 [N]."""
    images = train.tiled(tile)
    return resize_factors(images, short, longest)[images.owners]


def _fits_an_anchor(cfg: CfgNode, boxes: np.ndarray) -> np.ndarray:
    """Return bool [N]: an anchor shape has the IoU MIN_IOU with the box (width, height)."""
    node = cfg.MODEL.RPN
    sizes = np.concatenate([np.atleast_1d(level) for level in node.ANCHOR_SIZES])
    if cfg.MODEL.META_ARCHITECTURE == "RetinaNet":
        node = cfg.MODEL.RETINANET
        octaves = node.OCTAVE ** (np.arange(node.SCALES_PER_OCTAVE) / node.SCALES_PER_OCTAVE)
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
