"""Keys of training and of evaluation."""

from detlite.config.key import (
    Key,
    above_up_to_one,
    below_one,
    duration,
    each,
    expected_results,
    fraction,
    not_negative,
    one_of,
    positive,
    steps,
    strings,
)

_SOLVER = {
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
        "layer-wise decay: multiplier of the learning rate from each backbone layer to the "
        "previous one. Layers are the stages of ResNets, timm's convolutional models and Swin, and "
        "the blocks of a plain transformer"
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
        "multistep: iterations, or fractions of the run below 1, at which the learning rate is "
        "multiplied by GAMMA; MAX_MINUTES needs fractions"
    ),
    Key("GAMMA", 0.1, positive): "multistep: multiplier of the learning rate at each of STEPS",
    Key("WARMUP_METHOD", "linear", one_of("linear", "constant")): "warm-up schedule",
    Key("WARMUP_FACTOR", 1.0 / 3, fraction): "learning rate multiplier at the start of warm-up",
    Key("WARMUP_ITERS", 500, not_negative): (
        "length of warm-up in iterations; with MAX_EPOCHS or MAX_MINUTES at most 10 % of the run"
    ),
    Key("CLIP_GRAD_NORM", 0.0, not_negative): "clip gradients to this total norm; 0: no clipping",
    Key("EMA_DECAY", 0.0, below_one): (
        "decay of an exponential moving average (EMA) of the weights, such as 0.9998. The average "
        "is evaluated and saved in addition to the weights; 0: no EMA"
    ),
    Key("DETERMINISTIC", False): "use deterministic algorithms, so that runs are reproducible",
    Key("LOG_PERIOD", 20, positive): "iterations between log lines",
    Key("CHECKPOINT_PERIOD", 2500, not_negative): "iterations between checkpoints; 0: only final",
    Key("CHECKPOINTS_KEPT", 0, not_negative): (
        "number of checkpoints to keep, in addition to final and best; 0: all"
    ),
    Key("TEST_PERIOD", 0, not_negative): "iterations between evaluations; 0: only at the end",
    Key("BEST_METRIC", ""): (
        "keep the checkpoint with the best value of this metric as model_best.pth: bbox/AP (first "
        "test set), my_val/bbox/AP, my_val average/bbox/AP (EMA weights), or a loss such as "
        "loss/total (lower is better); empty: none"
    ),
    Key("PATIENCE", 0, not_negative): "early stopping: evaluations without a new best; 0: off",
    Key("HOOKS", (), strings): "names of registered trainer hooks; see IMPORTS",
}
_TEST = {
    Key("OPTIMIZE", True): (
        "evaluate and predict with an optimized copy of the model: fused normalization and "
        "activations, weights in DTYPE. Detections are the same up to rounding"
    ),
    Key("IMS_PER_BATCH", 8, positive): "batch size of evaluation, over all processes",
    Key("TILE", 0, not_negative): (
        "divide larger images into overlapping tiles with this side in pixels, detect objects in "
        "each tile at INPUT.MIN_SIZE_TEST, and merge the detections; 0: no tiling"
    ),
    Key("EXTRA_OUTPUTS", (), each(one_of("class_scores", "features"), empty=True)): (
        "additional outputs for each detection: class_scores, the scores of all categories; "
        "features, the box head's features of the detected box"
    ),
    Key("SCORE_THRESHOLD", 0.0, fraction): (
        "`Predictor` and `detlite predict` omit detections with a lower score. Training stores the "
        "score with the best F1 on the first test set in its checkpoints; 0: unknown, they use 0.5"
    ),
    Key("UNLABELED_IMAGES", "background", one_of("background", "skip")): (
        "test images without annotations: background, they contain no objects, so that every "
        "detection there is wrong; skip, they are not labeled yet"
    ),
    Key("REPORT", True): "write report.html at the end of training, if jinja2 is installed",
    Key("LOSS", False): "also report the losses (loss/total, loss/box, ...) on the test set",
    Key("EXPECTED_RESULTS", [], expected_results): (
        "expected metrics such as [bbox, AP, [0.377, 0.002]] (mean and standard deviation); "
        "evaluations log PASS or FAIL for each of them"
    ),
    Key("KEYPOINT_OKS_SIGMAS", (), each(positive, empty=True)): (
        "OKS sigma of each keypoint; empty: COCO's for 17 keypoints, otherwise the mean of COCO's"
    ),
    Key("IOU_THRESHOLDS", (), each(fraction, empty=True)): (
        "increasing IoUs over which COCO's AP and AR are averaged; empty: 0.5 to 0.95"
    ),
}
_BBOX_AUG = {
    Key("ENABLED", False): (
        "test-time augmentation: merge the boxes, masks and keypoints of several views of an "
        "image. The first view is the image at INPUT.MIN_SIZE_TEST"
    ),
    Key("H_FLIP", False): "add a flipped view at INPUT.MIN_SIZE_TEST",
    Key("SCALES", (), each(positive, empty=True)): "short sides in pixels of additional views",
    Key("MAX_SIZE", 4000, positive): "maximum long side of the views in SCALES",
    Key("SCALE_H_FLIP", False): "also add flipped views of SCALES",
}
_NMS = {
    Key("METHOD", "nms", one_of("nms", "soft-linear", "soft-gaussian", "voting")): (
        "method for overlapping detections of a category. nms: keep the one with the highest "
        "score. soft-linear, soft-gaussian: reduce the scores of the others (soft-NMS). voting: "
        "keep the one with the highest score, moved to the weighted mean of its neighbors"
    ),
    Key("CLASS_AGNOSTIC", False): "also suppress overlapping boxes of different categories",
}

SECTIONS = {
    "SOLVER": _SOLVER,
    "TEST": _TEST,
    "TEST.BBOX_AUG": _BBOX_AUG,
    "TEST.NMS": _NMS,
}
