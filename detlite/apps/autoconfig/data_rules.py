"""Rules for the data: invalid annotations, sizes of images, tiles, augmentation, pixel values."""

import math
from collections.abc import Iterator

import numpy as np

from .dataset_facts import Choice, DatasetFacts, Values, resize_factors
from .statistics import DatasetStatistics

_STEP = 32  # pixels: network inputs are padded to multiples of it
_OBJECT_SIDE = 28  # pixels that a small object should have: seven cells of the finest feature map
_MAX_ENLARGEMENT = 2.0
_MIN_SIZE = 256
_MIN_OBJECT_SIDE, _MIN_SHRUNK_SIZE = 14, 192  # in a short training, and of its images
_MAX_SIZE = {"cpu": 640, "gpu": 800}
# Side of the network input for a tile. A side of a tile has room for _TILE_OBJECTS large objects.
# Tiles are used if they increase the scale by _TILE_GAIN, and if the short side of the images is at
# least _MIN_TILES tiles.
_TILE_INPUT = {"cpu": 320, "gpu": 640}
_TILE_OBJECTS, _TILE_GAIN, _MIN_TILES = 3, 1.75, 1.5
_FEW_IMAGES, _FEW_OBJECTS = 1000, 10
_MAX_TEST_ASPECT = 5
_MAX_TRAIN_ASPECT = 2.5  # images of other shapes are reduced further, because of the memory
# Specks: at most _MAX_SPECKS of the objects, below an area that at most _GAP times as many objects
# exceed by up to its double, and that the median exceeds _SPECK_RATIO times.
_SPECKS = [2**power for power in range(1, 9)]
_FEW_AREAS = 20  # fewer objects have no distribution
_MAX_SPECKS, _GAP, _SPECK_RATIO = 0.4, 0.1, 16


def bad_annotations(facts: DatasetFacts, values: Values) -> Iterator[Choice]:
    masks = bool(values.get("MODEL.MASK_ON", facts.masks))
    keypoints = bool(values.get("MODEL.KEYPOINT_ON", facts.keypoints))
    problems = [part.problems.get((masks, keypoints), (0, "")) for part in facts.sets]
    if count := sum(number for number, _ in problems):
        first = next(text for number, text in problems if number)
        reason = (
            f"{count} annotations or images cannot be used, the first: {first}. `detlite check` "
            "lists them all; with `error`, training stops at them"
        )
        yield Choice("DATASETS.ON_BAD_ANNOTATION", "skip", reason)


def orientation(facts: DatasetFacts, _: Values) -> Iterator[Choice]:
    if any(part.values and not part.values.options.exif_orientation for part in facts.sets):
        reason = (
            "the annotations state the sizes of the stored pixels, so the EXIF orientation of the "
            "images is not applied"
        )
        yield Choice("MODEL.CONVENTION_OVERRIDE", ["exif_orientation=False"], reason)


def background(facts: DatasetFacts, _: Values) -> Iterator[Choice]:
    if facts.train.empty:
        reason = (
            f"{facts.train.empty} of {len(facts.train.sizes)} images have no annotations and are "
            "not used for training; set True if it is certain that they contain no objects"
        )
        yield Choice("DATASETS.BACKGROUND_IMAGES", False, reason)
    if facts.val and facts.val.empty:
        reason = (
            f"{facts.val.empty} of {len(facts.val.sizes)} evaluation images have no annotations "
            "and are assumed to contain no objects, so that every detection there is wrong; set "
            "skip if they are not labeled yet"
        )
        yield Choice("TEST.UNLABELED_IMAGES", "background", reason)


def min_area(facts: DatasetFacts, _: Values) -> Iterator[Choice]:
    train = facts.train
    if not (area := speck_area(train.areas, train.labels)):
        return
    below, up_to_double = ((train.areas < limit).sum() for limit in (area, 2 * area))
    reason = (
        f"{below} of {len(train.areas)} objects have fewer pixels, and only {up_to_double - below} "
        f"have up to twice as many: specks compared with the others (median "
        f"{np.median(train.areas):.0f}), so they are ignored regions. `detlite check` shows them; "
        "set 0 to train on them"
    )
    yield Choice("INPUT.MIN_AREA", area, reason)


def speck_area(areas: np.ndarray, labels: np.ndarray) -> int:
    """Return a number of pixels that only specks are below; 0 if there are none, or few objects.

    Specks are few small objects that a gap in the distribution separates from the others, in all
    categories that have some.

    Args:
        areas, labels: [N], of the objects.
    """
    if len(areas) < _FEW_AREAS:
        return 0
    counts = [(area, *((areas < limit).sum() for limit in (area, 2 * area))) for area in _SPECKS]
    found = []
    for area, below, up_to_double in counts:
        small = areas < area
        if (
            0 < below <= _MAX_SPECKS * len(areas)
            and up_to_double - below <= _GAP * below
            and np.median(areas[~small]) >= _SPECK_RATIO * area
            and all(2 * small[labels == x].sum() < (labels == x).sum() for x in np.unique(labels))
        ):
            found.append(area)
    return found[len(found) // 2] if found else 0


def tiles(facts: DatasetFacts, values: Values) -> Iterator[Choice]:
    """Cut images into tiles if their smallest objects would be too small in whole images."""
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
    shape = f"{longest:.0f}x{short:.0f}"
    reason = (
        f"{objects} have sides below {small:.0f} pixels, and {small_in_whole:.0f} in an image of "
        f"{shape} pixels resized to {limit}: tiles keep their size, and an epoch comprises all "
        "tiles of all images"
    )
    if whole := int((train.tiled(side).sizes.max(axis=1) > side).sum()):
        reason += f". {whole} of them are also trained whole, for objects too large for tiles"
    yield Choice("INPUT.TILE", side, reason)
    yield Choice("TEST.TILE", side, "detect in tiles of the same scale and in the whole image")


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


def image_size(facts: DatasetFacts, values: Values) -> Iterator[Choice]:
    train, device = facts.train, facts.device
    short = train.sizes.min(axis=1)
    median = float(np.median(short))
    small, objects, _ = _small_objects(train, train.sides / short[train.owners])
    required = _OBJECT_SIDE / small
    high = min(_MAX_ENLARGEMENT * median, _MAX_SIZE[device])
    low = min(_MIN_SIZE, high)
    full = min(max(required, low), high)
    # With less, small objects or whole scenes are not recognized, even with many steps.
    needed = min(max(_MIN_OBJECT_SIDE / small, _MIN_SHRUNK_SIZE), full)
    size = _round_up(max(full * facts.shrink, needed))
    reason = (
        f"{objects} have sides below {small:.1%} of the short side of their image (median "
        f"{median:.0f} pixels). They have {_OBJECT_SIDE} pixels, seven cells of the finest feature "
        f"map, if the short side is {required:.0f}"
    )
    if required > high:
        reason += (
            f"; images are enlarged at most {_MAX_ENLARGEMENT:g} times"
            if high < _MAX_SIZE[device]
            else f"; the maximum for a {device.upper()} is {_MAX_SIZE[device]}"
        )
    if facts.shrink < 1:
        reason += f"; times {facts.shrink:g} to fit into the minutes"
        reason += f", but at least {needed:.0f} for the objects" * (needed > full * facts.shrink)
    lost = float((train.sides * size / short[train.owners] < 8).mean())
    if lost > 0.05:
        reason += (
            f". {lost:.0%} of the objects are then smaller than 8 pixels and will hardly be "
            "detected: INPUT.TILE, which cuts images into tiles, would help more"
        )
    if sizes := values.get("INPUT.MIN_SIZE_TRAIN"):
        size = sorted(sizes)[len(sizes) // 2]
        reason = f"the median of the training sizes {', '.join(map(str, sizes))}"
    yield Choice("INPUT.MIN_SIZE_TEST", size, reason)
    size = values.get("INPUT.MIN_SIZE_TEST", size)
    sizes = sorted({max(size + shift, _STEP) for shift in (-2 * _STEP, -_STEP, 0, _STEP)})
    yield Choice("INPUT.MIN_SIZE_TRAIN", sizes, "sizes around the test size, for variation")
    sizes = list(values.get("INPUT.MIN_SIZE_TRAIN", sizes))
    aspect = float(np.quantile(train.sizes.max(axis=1) / short, 0.99))
    longest = _round_up(min(aspect, _MAX_TRAIN_ASPECT) * max(sizes))
    reason = f"the long side of 99 % of the images is at most {aspect:.2f} times their short side"
    yield Choice("INPUT.MAX_SIZE_TRAIN", longest, reason)
    longest = values.get("INPUT.MAX_SIZE_TRAIN", longest)
    if aspect * size > longest:
        reason = "long images are reduced as in training, so that objects keep their size"
        yield Choice("INPUT.MAX_SIZE_TEST", longest, reason)
        return
    reason = (
        f"new images of up to {_MAX_TEST_ASPECT} times their short side keep the scale of the "
        "objects, independent of the shape of the training images"
    )
    yield Choice("INPUT.MAX_SIZE_TEST", max(longest, _MAX_TEST_ASPECT * size), reason)


def augmentation(facts: DatasetFacts, _: Values) -> Iterator[Choice]:
    train = facts.train
    centers = train.boxes[:, 1] + train.boxes[:, 3] / 2
    height = float((centers / train.sizes[train.owners, 0]).mean())
    ratio = float(np.exp(np.log(train.ratios).mean()))
    upright = (
        abs(height - 0.5) > 0.025 or abs(math.log(ratio)) > 0.15 or abs(train.top_bottom) > 0.045
    )
    if not upright and not train.keypoints:
        reason = (
            f"the images have no visible upright direction: objects are at {height:.0%} of the "
            f"height on average and {ratio:.2f} times as high as wide, and the upper half of "
            f"images is {train.top_bottom:+.1%} brighter; set 0 if the direction matters"
        )
        yield Choice("INPUT.VERTICAL_FLIP_PROB_TRAIN", 0.5, reason)
    if len(train.sizes) < _FEW_IMAGES:
        reason = f"{len(train.sizes)} images are few, so vary their colors"
        yield Choice("INPUT.BRIGHTNESS", 0.2, reason)
        yield Choice("INPUT.CONTRAST", 0.2)


def image_values(facts: DatasetFacts, values: Values) -> Iterator[Choice]:
    measured = facts.train.values
    if measured is None:
        return
    options, reason = measured.options, measured.reason
    if reason and options.value_range:
        yield Choice("INPUT.VALUE_RANGE", list(options.value_range), reason)
    elif reason:
        yield Choice("INPUT.IMAGE_BITS", options.bits, reason)
    if options.channels != 3:
        scale = 255 if values.get("INPUT.TO_BGR255") else 1
        reason = f"the images have {options.channels} channels with these means and deviations"
        for key, row in (("INPUT.PIXEL_MEAN", measured.mean), ("INPUT.PIXEL_STD", measured.std)):
            yield Choice(key, [round(scale * value, 4) for value in row], reason)
            reason = ""


def _round_up(value: float) -> int:
    """Round up to a multiple of 32, at least 32."""
    return max(math.ceil(value / _STEP), 1) * _STEP
