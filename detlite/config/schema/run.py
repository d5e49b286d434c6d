"""Keys of images, datasets, data loading, training and evaluation."""

from detlite.config.key import (
    Key,
    above_up_to_one,
    below_one,
    catalog,
    duration,
    each,
    expected_results,
    fraction,
    in_range,
    name_pairs,
    not_negative,
    one_of,
    positive,
    steps,
    strings,
    value_range,
)

# The keys of each section, with their descriptions.
SECTIONS: dict[str, dict[Key, str]] = {}

SECTIONS["INPUT"] = {
    Key("MIN_SIZE_TRAIN", (800,), each(positive)): "short sides in training, one drawn per image",
    Key("MAX_SIZE_TRAIN", 1333, positive): "maximum long side in training",
    Key("MIN_SIZE_TEST", 800, positive): (
        "short side of images in evaluation; sizes far from MIN_SIZE_TRAIN lower the AP"
    ),
    Key("MAX_SIZE_TEST", 1333, positive): "maximum long side in evaluation",
    Key("PIXEL_MEAN", [102.9801, 115.9465, 122.7717], each(in_range(0, 255))): (
        "channel means to subtract, see TO_BGR255; as many as the model has channels"
    ),
    Key("PIXEL_STD", [1.0, 1.0, 1.0], each(positive)): "channel standard deviations to divide by",
    Key("TO_BGR255", True): "input from 0 to 255, in BGR order; False: 0 to 1, in RGB order",
    Key("IMAGE_BITS", 16, in_range(8, 16)): "used bits of 16-bit images; the highest 8 are kept",
    Key("VALUE_RANGE", (), value_range): (
        "(low, high), or a pair per channel, of 16-bit and float images; (): use IMAGE_BITS"
    ),
    Key("BRIGHTNESS", 0.0, not_negative): "color jitter: maximum relative change of brightness",
    Key("CONTRAST", 0.0, not_negative): "color jitter: maximum relative change of contrast",
    Key("SATURATION", 0.0, not_negative): "color jitter: maximum relative change of saturation",
    Key("HUE", 0.0, in_range(0, 0.5)): "color jitter: maximum change of hue; 0.5 is half a turn",
    Key("HORIZONTAL_FLIP_PROB_TRAIN", 0.5, fraction): "probability of a horizontal flip",
    Key("VERTICAL_FLIP_PROB_TRAIN", 0.0, fraction): "probability of a vertical flip",
    Key("ROTATION", 0.0, in_range(0, 180)): (
        "maximum angle of random rotations in degrees; corners have the mean color"
    ),
    Key("TRANSFORMS", (), strings): (
        "registered transforms, applied to training images after all others; see IMPORTS"
    ),
    Key("TILE", 0, not_negative): (
        "train on overlapping tiles with this side, in pixels of the image; 0: on whole images"
    ),
    Key("MIN_AREA", 0, not_negative): (
        "objects with fewer pixels are ignored: neither trained nor measured; 0: none"
    ),
    Key("COPY_PASTE_PROB", 0.0, fraction): "probability of pasting objects from another image",
}
SECTIONS["DATASETS"] = {
    Key("TRAIN", (), strings): "names of the training sets, built in or in CATALOG",
    Key("TEST", (), strings): "names of the evaluation sets, built in or in CATALOG",
    Key("ROOT", "datasets"): "folder or URL of all datasets; ${VARIABLE:-default} is expanded",
    Key("CATALOG", [], catalog): "your datasets: {name, annotations, images}, see docs/data.md",
    Key("ON_BAD_ANNOTATION", "error", one_of("error", "skip")): (
        "stop at invalid annotations, or skip them and ignore the regions of their objects"
    ),
    Key("CROWDS_AS_OBJECTS", False): (
        "treat iscrowd 1, which CVAT writes for masks drawn with the brush, like 0"
    ),
    Key("KEYPOINT_FLIP_PAIRS", [], name_pairs): (
        "[left, right] names of keypoints that flips swap, besides left_x and right_x, Lx and Rx"
    ),
    Key("BACKGROUND_IMAGES", False): "also train on images without annotations",
    Key("CHECK_IMAGES", True): "check all image files when a dataset is opened for the first time",
    Key("CACHE_GB", 20.0, not_negative): (
        "GiB of each cache in DETLITE_CACHE (images from URLs, reduced large images); 0: no cache"
    ),
    Key("MAX_PIXELS", 178_956_970, positive): "maximum pixels of an image; the default is Pillow's",
    Key("MIN_KEYPOINTS_PER_IMAGE", 0, not_negative): (
        "skip training images with fewer labeled keypoints (maskrcnn-benchmark: 10)"
    ),
    Key("PROPOSAL_FILES_TRAIN", (), strings): (
        "file of proposals (.pkl of detectron2, .json) for each set in TRAIN, relative to ROOT"
    ),
    Key("PROPOSAL_FILES_TEST", (), strings): "a proposal file for each set in TEST",
    Key("PRECOMPUTED_PROPOSAL_TOPK_TRAIN", 2000, positive): "proposals per image, in training",
    Key("PRECOMPUTED_PROPOSAL_TOPK_TEST", 1000, positive): "proposals per image, in evaluation",
}
SECTIONS["DATALOADER"] = {
    Key("NUM_WORKERS", None, not_negative, optional_type=int): (
        "loader processes; 0: load in the main process; None: 4, or the number of cores if fewer"
    ),
    Key("CACHE", 0.0, not_negative): (
        "GiB of memory for decoded training images, the first ones that fit; 0: none"
    ),
    Key("SIZE_DIVISIBILITY", 0, in_range(0, 4096)): "pad sides to a multiple of this; 0: none",
    Key("ASPECT_RATIO_GROUPING", True): "put only wide or only tall images into a batch",
    Key("REPEAT_THRESHOLD", 0.0, fraction): (
        "repeat images of categories rarer than this fraction of images (LVIS: 0.001); 0: none"
    ),
}
SECTIONS["SOLVER"] = {
    Key("OPTIMIZER", "SGD"): (
        "SGD, FusedSGD (the same), AdamW, ScheduleFreeAdamW or a registered one. ScheduleFreeAdamW "
        "(`pip install schedulefree`) averages the weights instead of lowering the learning rate, "
        "and needs LR_SCHEDULE constant"
    ),
    Key("MAX_ITER", 40000, duration, int): (
        "run length in iterations, unless MAX_EPOCHS or MAX_MINUTES is set"
    ),
    Key("MAX_EPOCHS", None, duration, float): "run length in epochs",
    Key("MAX_MINUTES", None, duration, float): "run length in minutes",
    Key("IMS_PER_BATCH", 16, positive): "batch size over all processes",
    Key("ACCUMULATION_STEPS", 1, positive): "gradient accumulation: number of parts of a batch",
    Key("BASE_LR", 0.001, positive): "learning rate after warm-up",
    Key("BIAS_LR_FACTOR", 2.0, not_negative): "learning rate multiplier of biases",
    Key("LAYER_DECAY", 1.0, above_up_to_one): (
        "learning rate of a backbone layer (stage, transformer block) relative to the next one"
    ),
    Key("MOMENTUM", 0.9, below_one): "momentum of SGD; first beta of AdamW",
    Key("WEIGHT_DECAY", 0.0005, not_negative): "weight decay of weights",
    Key("WEIGHT_DECAY_BIAS", 0.0, not_negative): "weight decay of biases",
    Key("WEIGHT_DECAY_NORM", None, not_negative, float): (
        "weight decay of the scales of normalization layers; unset: WEIGHT_DECAY"
    ),
    Key("LR_SCHEDULE", "multistep", one_of("multistep", "cosine", "constant")): (
        "schedule after warm-up"
    ),
    Key("STEPS", (30000,), steps): (
        "multistep: iterations, or fractions of the run (with MAX_MINUTES), to multiply by GAMMA at"
    ),
    Key("GAMMA", 0.1, positive): "multistep: multiplier of the learning rate at each of STEPS",
    Key("WARMUP_METHOD", "linear", one_of("linear", "constant")): "warm-up schedule",
    Key("WARMUP_FACTOR", 1.0 / 3, fraction): "learning rate multiplier at the start of warm-up",
    Key("WARMUP_ITERS", 500, not_negative): (
        "iterations of warm-up; with MAX_EPOCHS or MAX_MINUTES at most 10 % of the run"
    ),
    Key("CLIP_GRAD_NORM", 0.0, not_negative): "clip gradients to this total norm; 0: no clipping",
    Key("EMA_DECAY", 0.0, below_one): (
        "decay, such as 0.9998, of averages of the weights, evaluated and saved too; 0: none"
    ),
    Key("DETERMINISTIC", False): "use deterministic algorithms, so that runs are reproducible",
    Key("LOG_PERIOD", 20, positive): "iterations between log lines",
    Key("CHECKPOINT_PERIOD", 2500, not_negative): "iterations between checkpoints; 0: only final",
    Key("CHECKPOINTS_KEPT", 0, not_negative): (
        "number of checkpoints to keep, in addition to final and best; 0: all"
    ),
    Key("TEST_PERIOD", 0, not_negative): "iterations between evaluations; 0: only at the end",
    Key("BEST_METRIC", ""): (
        "keep the best checkpoint by bbox/AP, my_val/bbox/AP, my_val average/bbox/AP (EMA), ..."
    ),
    Key("PATIENCE", 0, not_negative): "early stopping: evaluations without a new best; 0: off",
    Key("HOOKS", (), strings): "names of registered trainer hooks; see IMPORTS",
}
SECTIONS["TEST"] = {
    Key("OPTIMIZE", True): (
        "evaluate and predict with an optimized copy of the model, up to rounding the same"
    ),
    Key("IMS_PER_BATCH", 8, positive): "batch size of evaluation, over all processes",
    Key("TILE", 0, not_negative): (
        "detect in overlapping tiles with this side in pixels, each at INPUT.MIN_SIZE_TEST; 0: none"
    ),
    Key("EXTRA_OUTPUTS", (), each(one_of("class_scores", "features"), empty=True)): (
        "outputs per detection: class_scores (of all categories), features (of the box head)"
    ),
    Key("SCORE_THRESHOLD", 0.0, fraction): (
        "minimum score of Predictor and detlite predict, which training measures; 0: 0.5"
    ),
    Key("UNLABELED_IMAGES", "background", one_of("background", "skip")): (
        "test images without annotations: background without objects, or skip them"
    ),
    Key("REPORT", True): "write report.html at the end of training, if jinja2 is installed",
    Key("LOSS", False): "also report the losses (loss/total, loss/box, ...) on the test set",
    Key("EXPECTED_RESULTS", [], expected_results): (
        "expected metrics, [bbox, AP, [0.377, 0.002]] (mean, deviation), to log PASS or FAIL"
    ),
    Key("KEYPOINT_OKS_SIGMAS", (), each(positive, empty=True)): (
        "OKS sigma of each keypoint; empty: COCO's for 17 keypoints, else their mean"
    ),
    Key("IOU_THRESHOLDS", (), each(fraction, empty=True)): (
        "increasing IoUs over which COCO's AP and AR are averaged; empty: 0.5 to 0.95"
    ),
}
SECTIONS["TEST.BBOX_AUG"] = {
    Key("ENABLED", False): (
        "merge detections of several views of an image; the first is at INPUT.MIN_SIZE_TEST"
    ),
    Key("H_FLIP", False): "add a flipped view at INPUT.MIN_SIZE_TEST",
    Key("SCALES", (), each(positive, empty=True)): "short sides in pixels of additional views",
    Key("MAX_SIZE", 4000, positive): "maximum long side of the views in SCALES",
    Key("SCALE_H_FLIP", False): "also add flipped views of SCALES",
}
SECTIONS["TEST.NMS"] = {
    Key("METHOD", "nms", one_of("nms", "soft-linear", "soft-gaussian", "voting")): (
        "method for overlapping detections of a category. nms: keep the one with the highest "
        "score. soft-linear, soft-gaussian: reduce the scores of the others (soft-NMS). voting: "
        "keep the one with the highest score, moved to the weighted mean of its neighbors"
    ),
    Key("CLASS_AGNOSTIC", False): "also suppress overlapping boxes of different categories",
}
