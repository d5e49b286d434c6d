"""Rules for the data: invalid annotations, sizes of images, tiles, augmentation, pixel values."""

import math
from collections.abc import Iterator

import numpy as np

from .dataset_facts import Choice, DatasetFacts, Values

_STEP = 32  # pixels: network inputs are padded to multiples of it
_OBJECT_SIDE = 28  # pixels that a small object should have: seven cells of the finest feature map
_MAX_ENLARGEMENT = 2.0
_MIN_SIZE = 256
_MAX_SIZE = {"cpu": 640, "gpu": 800}
# Side of the network input for a tile. A side of a tile has room for _TILE_OBJECTS large objects.
# Tiles are used if they increase the scale by _TILE_GAIN, and if the short side of the images is at
# least _MIN_TILES tiles.
_TILE_INPUT = {"cpu": 320, "gpu": 640}
_TILE_OBJECTS, _TILE_GAIN, _MIN_TILES = 3, 1.75, 1.5
_FEW_IMAGES, _FEW_OBJECTS = 1000, 10
_MAX_TEST_ASPECT = 5


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


def tiles(facts: DatasetFacts, values: Values) -> Iterator[Choice]:
    """Cut images into tiles if their smallest objects would be too small in whole images."""
    train = facts.train
    if train.keypoints or values.keys() & {"INPUT.MIN_SIZE_TRAIN", "INPUT.MIN_SIZE_TEST"}:
        return
    short = float(np.median(train.sizes.min(axis=1)))
    small, large = np.quantile(train.sides, [0.1, 0.9])
    scale = min(_OBJECT_SIDE / small, _MAX_ENLARGEMENT)
    whole_scale = _MAX_SIZE[facts.device] / short
    side = _round_up(max(_TILE_INPUT[facts.device] / scale, _TILE_OBJECTS * large))
    if scale < _TILE_GAIN * whole_scale or side * _MIN_TILES > short:
        return
    reason = (
        f"one in ten objects has a side below {small:.0f} pixels, and {small * whole_scale:.0f} in "
        f"an image of {short:.0f} pixels resized to {_MAX_SIZE[facts.device]}: tiles keep their "
        "size, and an epoch comprises all tiles of all images"
    )
    yield Choice("INPUT.TILE", side, reason)
    yield Choice("TEST.TILE", side, "detect in tiles of the same scale and in the whole image")


def image_size(facts: DatasetFacts, values: Values) -> Iterator[Choice]:
    train, device = facts.train, facts.device
    short = train.sizes.min(axis=1)
    median = float(np.median(short))
    relative = train.sides / short[train.owners]
    small, objects = float(np.quantile(relative, 0.1)), "one in ten objects"
    # AP is a mean over categories, so the category with the smallest objects counts like others.
    for number, (name, count, _) in enumerate(train.categories):
        median_side = float(np.median(relative[train.labels == number])) if count else 1.0
        if count >= _FEW_OBJECTS and median_side < small:
            small, objects = median_side, f"half of the objects of category {name}"
    required = _OBJECT_SIDE / small
    high = min(_MAX_ENLARGEMENT * median, _MAX_SIZE[device])
    low = min(_MIN_SIZE, high)
    size = _round_up(min(max(required, low), high) * facts.shrink)
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
    longest = _round_up(min(aspect, 2.5) * max(sizes))
    reason = f"the long side of 99 % of the images is at most {aspect:.2f} times their short side"
    yield Choice("INPUT.MAX_SIZE_TRAIN", longest, reason)
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
