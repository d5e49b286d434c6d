"""Keys of evaluation, and of what only happens at test time."""

from __future__ import annotations

from detlite.config.checks import (
    each,
    expected_results,
    fraction,
    in_range,
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
        "evaluation and prediction call a copy of the model whose norms and activations are fused "
        "into its convolutions, with weights in DTYPE: the same detections up to rounding, sooner",
    ),
    Key("IMS_PER_BATCH", 8, "images in an evaluation batch, over all processes", positive),
    Key(
        "TILE",
        0,
        "side in pixels of the overlapping tiles that larger pictures are cut into, each seen at "
        "INPUT.MIN_SIZE_TEST; what is found is joined. 0: pictures stay whole",
        not_negative,
    ),
    Key(
        "TILE_OVERLAP",
        0.2,
        "least overlap of neighbouring tiles, as a part of their side",
        in_range(0, 1, open_end=True),
    ),
    Key(
        "LOSS",
        False,
        "an evaluation also gives the losses on the set, among its metrics as loss/total, "
        "loss/box, ...: means over its annotated images",
    ),
    Key(
        "EXPECTED_RESULTS",
        [],
        "rows such as [bbox, AP, [0.377, 0.002]], a mean and its standard deviation: after an "
        "evaluation PASS or FAIL is logged for each",
        expected_results,
    ),
    Key("EXPECTED_RESULTS_SIGMA_TOL", 4.0, "standard deviations that are still PASS", not_negative),
    Key(
        "KEYPOINT_OKS_SIGMAS",
        (),
        "how far each keypoint may be off in evaluation, as a part of the object's size; empty: "
        "COCO's for 17 keypoints, else the mean of COCO's",
        each(positive, empty=True),
    ),
)
_BBOX_AUG = section(
    "TEST.BBOX_AUG",
    Key(
        "ENABLED",
        False,
        "test-time augmentation: join what is found in several views of a picture (boxes, masks "
        "and keypoints); that at INPUT.MIN_SIZE_TEST is always one of them",
    ),
    Key("H_FLIP", False, "also look at it mirrored"),
    Key("SCALES", (), "short sides in pixels of further views", each(positive, empty=True)),
    Key("MAX_SIZE", 4000, "longest side of those views", positive),
    Key("SCALE_H_FLIP", False, "also look at those mirrored"),
)
_NMS = section(
    "TEST.NMS",
    Key(
        "METHOD",
        "nms",
        "detections of a category that overlap: nms keeps the best; soft-linear and soft-gaussian "
        "lower the scores of the others; voting keeps the best, moved to the mean of its "
        "neighbours; fusion replaces them all by their mean (weighted boxes fusion)",
        one_of("nms", "soft-linear", "soft-gaussian", "voting", "fusion"),
    ),
    Key("SIGMA", 0.5, "soft-gaussian: scores fall by exp(-IoU^2 / SIGMA)", positive),
    Key("VOTE_THRESH", 0.8, "voting: least IoU of a neighbour", fraction),
    Key("MIN_SCORE", 0.001, "soft-*, fusion: detections need a higher score in the end", fraction),
)

KEYS = (*_TEST, *_BBOX_AUG, *_NMS)
