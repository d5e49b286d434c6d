"""Sizes of images, tiles and specks that fit the objects of a dataset."""

import math

import numpy as np

from .dataset_facts import DatasetFacts, Rules, Values, resize_factors
from .statistics import DatasetStatistics

_STEP = 32  # pixels: network inputs are padded to multiples of it
_OBJECT_SIDE = 28  # pixels that a small object should have: seven cells of the finest feature map
_MAX_ENLARGEMENT = 2.0
_MIN_SIZE = 256
_MAX_SIZE = {"CPU": 640, "GPU": 800}
# Side of the network input for a tile. A side of a tile has room for _TILE_OBJECTS large objects.
# Tiles are used if they increase the scale by _TILE_GAIN, and if the short side of the images is at
# least _MIN_TILES tiles.
_TILE_INPUT = {"CPU": 320, "GPU": 640}
_TILE_OBJECTS, _TILE_GAIN, _MIN_TILES = 3, 1.75, 1.5
_FEW_OBJECTS = 10
TINY = 8  # pixels of the network input: smaller objects are hardly detected
_MAX_TEST_ASPECT = 5
_MAX_TRAIN_ASPECT = 2.5  # images of other shapes are reduced further, because of the memory
# Specks: at most _MAX_SPECKS of the objects, below an area that at most _GAP times as many objects
# exceed by up to its double, and that the median exceeds _SPECK_RATIO times.
_SPECKS = [2**power for power in range(1, 9)]
_FEW_AREAS = 20  # fewer objects have no distribution
_MAX_SPECKS, _GAP, _SPECK_RATIO = 0.4, 0.1, 16


def min_area(facts: DatasetFacts) -> Rules:
    """Choose the area that only specks are below, if there are any."""
    train = facts.train
    if area := speck_area(train.areas, train.labels):
        below, up_to_double = ((train.areas < limit).sum() for limit in (area, 2 * area))
        yield ("INPUT.MIN_AREA", area,
               f"{below} of {len(train.areas)} objects have fewer pixels, {up_to_double - below} "
               "up to twice as many: ignore these specks, which `detlite check` shows; set 0 to "
               "train on them")  # fmt: skip


def speck_area(areas: np.ndarray, labels: np.ndarray) -> int:
    """Return a number of pixels that only specks are below; 0 if there are none, or few objects.

    Specks are few small objects that a gap in the distribution separates from the others, in all
    categories that have some.

    Args:
        areas, labels: [N], of the objects.
    """
    if len(areas) < _FEW_AREAS:
        return 0
    found = []
    for area in _SPECKS:
        small = areas < area
        below, up_to_double = small.sum(), (areas < 2 * area).sum()
        if (
            0 < below <= _MAX_SPECKS * len(areas)
            and up_to_double - below <= _GAP * below
            and np.median(areas[~small]) >= _SPECK_RATIO * area
            and all(2 * small[labels == x].sum() < (labels == x).sum() for x in np.unique(labels))
        ):
            found.append(area)
    return found[len(found) // 2] if found else 0


def tiles(facts: DatasetFacts, values: Values) -> Rules:
    """Choose tiles if the smallest objects would be too small in whole images."""
    train = facts.train
    if train.keypoints or values.keys() & {"INPUT.MIN_SIZE_TRAIN", "INPUT.MIN_SIZE_TEST"}:
        return
    limit = _MAX_SIZE[facts.device]
    in_whole = train.sides * resize_factors(train, limit, _MAX_TRAIN_ASPECT * limit)[train.owners]
    small, objects, _ = _small_objects(train, train.sides)
    small_in_whole, _, rows = _small_objects(train, in_whole)
    scale = min(_OBJECT_SIDE / small, _MAX_ENLARGEMENT)
    # Objects of the smallest half that fit into tiles of usual size; larger ones are trained in the
    # whole images.
    side = _TILE_INPUT[facts.device] / scale
    fitting = train.sides[train.sides <= max(side, float(np.median(train.sides)))]
    side = _round_up(max(side, _TILE_OBJECTS * float(np.quantile(fitting, 0.9))))
    sizes = train.sizes[train.owners[rows]]
    short, longest = np.median(sizes.min(axis=1)), np.median(sizes.max(axis=1))
    length = short if longest <= _MAX_TRAIN_ASPECT * short else longest
    if small * scale < _TILE_GAIN * small_in_whole or side * _MIN_TILES > length:
        return
    whole = int((train.tiled(side).sizes.max(axis=1) > side).sum())
    yield "TEST.TILE", side, "detect in tiles of the same scale and in the whole image"
    yield ("INPUT.TILE", side,
           f"{objects} have sides below {small:.0f} pixels, and {small_in_whole:.0f} in an image "
           f"of {longest:.0f}x{short:.0f} pixels resized to {limit}. An epoch comprises all tiles "
           f"of all images, and {whole} whole images, for objects too large for "
           "tiles")  # fmt: skip


def _small_objects(train: DatasetStatistics, sides: np.ndarray) -> tuple[float, str, np.ndarray]:
    """Return a side that small objects have, whose side it is, and the indices of objects below it.

    AP is a mean over categories, so the category with the smallest objects counts like others.
    """
    small, objects = float(np.quantile(sides, 0.1)), "one in ten objects"
    for number, (name, count, _) in enumerate(train.categories):
        if count >= _FEW_OBJECTS:
            median = float(np.median(sides[train.labels == number]))
            if median < small:
                small, objects = median, f"half of the objects of category {name}"
    return small, objects, np.flatnonzero(sides <= small)


def sizes(facts: DatasetFacts, values: Values) -> Rules:
    """Choose the sizes of images in training and evaluation."""
    yield "INPUT.MIN_SIZE_TEST", *_test_size(facts, values)
    size = values["INPUT.MIN_SIZE_TEST"]
    step = min(_STEP, size // 8)  # small images vary by an eighth, so that objects keep pixels
    around = {max(size + count * step, _STEP) for count in (-2, -1, 0, 1)}
    yield "INPUT.MIN_SIZE_TRAIN", sorted(around), "sizes around the test size, for variation"
    images = facts.train.sizes
    aspect = float(np.quantile(images.max(axis=1) / images.min(axis=1), 0.99))
    longest = _round_up(min(aspect, _MAX_TRAIN_ASPECT) * max(values["INPUT.MIN_SIZE_TRAIN"]))
    reason = "the long side of 99 % of the images, at most 2.5 times the short one"
    yield "INPUT.MAX_SIZE_TRAIN", longest, reason
    longest = values["INPUT.MAX_SIZE_TRAIN"]
    if aspect * size <= longest:  # otherwise reduced as in training, so objects keep their size
        longest = max(longest, _MAX_TEST_ASPECT * size)
    reason = "objects in new images of up to 5 times their short side keep their scale"
    yield "INPUT.MAX_SIZE_TEST", longest, reason


def _test_size(facts: DatasetFacts, values: Values) -> tuple[int, str]:
    """Return a size in which small objects have enough pixels, and the reason."""
    if sizes := values.get("INPUT.MIN_SIZE_TRAIN"):
        return sorted(sizes)[len(sizes) // 2], "the median of the training sizes"
    train, maximum = facts.train, _MAX_SIZE[facts.device]
    short = train.sizes.min(axis=1)
    median = float(np.median(short))
    small, objects, _ = _small_objects(train, train.sides / short[train.owners])
    required = _OBJECT_SIDE / small
    high = min(_MAX_ENLARGEMENT * median, maximum)
    size = _round_up(min(max(required, _MIN_SIZE), high))
    lost = float((train.sides * size / short[train.owners] < TINY).mean())
    reason = (
        f"{objects} have sides below {small:.1%} of the short side of their image (median "
        f"{median:.0f} pixels), or {_OBJECT_SIDE} pixels if it has {required:.0f}; at most "
        f"{high:.0f}"
    )
    if lost > 0.05:
        reason += f". {lost:.0%} of the objects are then smaller than {TINY} pixels and will hardly"
        reason += " be detected: INPUT.TILE, which cuts images into tiles, would help more"
    return size, reason


def _round_up(value: float) -> int:
    """Round up to a multiple of 32, at least 32."""
    return max(math.ceil(value / _STEP), 1) * _STEP
