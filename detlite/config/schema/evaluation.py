"""Keys of evaluation and test-time options."""

from detlite.config.checks import (
    below_one,
    each,
    expected_results,
    fraction,
    not_negative,
    one_of,
    positive,
)

from .key import Key, section

_TEST = section(
    "TEST",
    Key(
        "OPTIMIZE",
        True,
        "evaluate and predict with an optimized copy of the model: fused normalization and "
        "activations, weights in DTYPE. Detections are the same up to rounding",
    ),
    Key("IMS_PER_BATCH", 8, "batch size of evaluation, over all processes", positive),
    Key(
        "TILE",
        0,
        "divide larger images into overlapping tiles of this side in pixels, detect in each at "
        "INPUT.MIN_SIZE_TEST and merge the detections; 0: no tiling",
        not_negative,
    ),
    Key("TILE_OVERLAP", 0.2, "least overlap of tiles, as a fraction of their side", below_one),
    Key(
        "BOX_FROM_MASK",
        0.0,
        "weight of the tight box of the predicted mask in the mean with the predicted box, such as "
        "0.5; 0: the predicted box",
        fraction,
    ),
    Key(
        "MASK_CONFIDENCE",
        0.0,
        "multiply scores by this power of the mean foreground probability of the mask; 0: do not",
        not_negative,
    ),
    Key(
        "EXTRA_OUTPUTS",
        (),
        "additional outputs for each detection: class_scores, the scores of all categories; "
        "features, the box head's features of the detected box",
        each(one_of("class_scores", "features"), empty=True),
    ),
    Key(
        "SCORE_THRESHOLD",
        0.0,
        "detections with a lower score are left out by `Predictor` and `detlite predict`. Training "
        "stores the score of the best F1 on the first test set in its checkpoints; 0: unknown",
        fraction,
    ),
    Key("REPORT", True, "write report.html at the end of training, if jinja2 is installed"),
    Key("LOSS", False, "also report the losses (loss/total, loss/box, ...) on the test set"),
    Key(
        "EXPECTED_RESULTS",
        [],
        "expected metrics such as [bbox, AP, [0.377, 0.002]] (mean and standard deviation); an "
        "evaluation logs PASS or FAIL for each",
        expected_results,
    ),
    Key("EXPECTED_RESULTS_SIGMA_TOL", 4.0, "standard deviations that still PASS", not_negative),
    Key(
        "KEYPOINT_OKS_SIGMAS",
        (),
        "OKS sigma of each keypoint; empty: COCO's for 17 keypoints, otherwise the mean of COCO's",
        each(positive, empty=True),
    ),
)
_BBOX_AUG = section(
    "TEST.BBOX_AUG",
    Key(
        "ENABLED",
        False,
        "test-time augmentation: merge the boxes, masks and keypoints of several views of an "
        "image, one of them at INPUT.MIN_SIZE_TEST",
    ),
    Key("H_FLIP", False, "add the flipped view at INPUT.MIN_SIZE_TEST"),
    Key("SCALES", (), "short sides in pixels of additional views", each(positive, empty=True)),
    Key("MAX_SIZE", 4000, "limit for the long side of these views", positive),
    Key("SCALE_H_FLIP", False, "also add these views flipped"),
)
_NMS = section(
    "TEST.NMS",
    Key(
        "METHOD",
        "nms",
        "suppression of overlapping detections of a category: nms keeps the highest-scoring one; "
        "soft-linear and soft-gaussian lower the scores of the others (soft-NMS); voting keeps the "
        "highest-scoring one, moved to the weighted mean of its neighbors; fusion replaces all by "
        "their weighted mean (weighted boxes fusion)",
        one_of("nms", "soft-linear", "soft-gaussian", "voting", "fusion"),
    ),
    Key("SIGMA", 0.5, "for soft-gaussian: scores are multiplied by exp(-IoU^2 / SIGMA)", positive),
    Key("CLASS_AGNOSTIC", False, "boxes of different categories suppress each other too"),
    Key("VOTE_THRESH", 0.8, "for voting: least IoU of a neighbor", fraction),
    Key("MIN_SCORE", 0.001, "for soft-* and fusion: lower final scores are dropped", fraction),
)

KEYS = (*_TEST, *_BBOX_AUG, *_NMS)
