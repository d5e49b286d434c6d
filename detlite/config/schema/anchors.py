"""Keys of what is predicted at anchors: region proposals, and RetinaNet."""

from __future__ import annotations

from detlite.config.checks import (
    above,
    anchor_sizes,
    each,
    fraction,
    in_range,
    not_negative,
    one_of,
    positive,
)

from .key import BOX_LOSS, NORMS, Key, box_loss, section

_RPN = section(
    "MODEL.RPN",
    Key(
        "RPN_HEAD",
        "SingleConvRPNHead",
        "registered RPN head; SeparableRPNHead: of separable convolutions",
    ),
    Key("NUM_CONVS", 1, "3x3s before its predictions", positive),
    Key(
        "ANCHOR_SIZES",
        (32, 64, 128, 256, 512),
        "side of the anchors in pixels: all on a C4 map; one (or a tuple) for each FPN level",
        anchor_sizes,
    ),
    Key("ASPECT_RATIOS", (0.5, 1.0, 2.0), "height / width", each(positive)),
    Key("STRADDLE_THRESH", 0, "pixels an anchor may cross the image border in training; -1: any"),
    Key("FG_IOU_THRESHOLD", 0.7, "IoU from which an anchor is foreground", fraction),
    Key("BG_IOU_THRESHOLD", 0.3, "IoU below which an anchor is background", fraction),
    Key("BATCH_SIZE_PER_IMAGE", 256, "anchors sampled per image", positive),
    Key("POSITIVE_FRACTION", 0.5, "most foreground among them", fraction),
    *box_loss(beta=1.0 / 9),
    Key("PRE_NMS_TOP_N_TRAIN", 12000, "per level, before NMS, training", positive),
    Key("PRE_NMS_TOP_N_TEST", 6000, "per level, before NMS, test", positive),
    Key("POST_NMS_TOP_N_TRAIN", 2000, "per level, after NMS, training", positive),
    Key("POST_NMS_TOP_N_TEST", 1000, "per level, after NMS, test", positive),
    Key("NMS_THRESH", 0.7, "IoU above which a proposal is suppressed", fraction),
    Key("MIN_SIZE", 0.0, "proposals with a smaller side are dropped", not_negative),
    Key("FPN_POST_NMS_TOP_N_TRAIN", 2000, "over all levels, training", positive),
    Key("FPN_POST_NMS_TOP_N_TEST", 2000, "over all levels, test", positive),
    Key(
        "FPN_POST_NMS_PER_BATCH",
        True,
        "in training, count FPN_POST_NMS_TOP_N_TRAIN over the batch instead of per image",
    ),
)
_RETINANET = section(
    "MODEL.RETINANET",
    Key("NUM_CLASSES", 81, "categories + 1 (background)", in_range(2)),
    Key(
        "ANCHOR_SIZES",
        (32, 64, 128, 256, 512),
        "side of the smallest anchors in pixels: one (or a tuple) for each level",
        anchor_sizes,
    ),
    Key("OCTAVE", 2.0, "factor from each size to the next in line", above(1)),
    Key("SCALES_PER_OCTAVE", 3, "sizes on the way there", positive),
    Key("ASPECT_RATIOS", (0.5, 1.0, 2.0), "height / width", each(positive)),
    Key("USE_C5", True, "in a CONV_BODY R-...-FPN-RETINANET, P6 is made from C5; False: from P5"),
    Key("P7_RELU", True, "P7 is made from P6 behind a ReLU; False: from P6 as it is (mmdetection)"),
    Key("NUM_CONVS", 4, "3x3s of each tower", not_negative),
    Key(
        "NORM",
        "",
        "norm in the towers; BN and SyncBN have statistics for each level, the others normalise "
        "all alike; empty: none",
        one_of("", *NORMS),
    ),
    Key("PRIOR_PROB", 0.01, "score that every anchor starts with", in_range(1e-6, 0.5)),
    Key("FG_IOU_THRESHOLD", 0.5, "IoU from which an anchor is foreground", fraction),
    Key("BG_IOU_THRESHOLD", 0.4, "IoU below which an anchor is background", fraction),
    Key("LOSS_ALPHA", 0.25, "focal loss: weight of the foreground", fraction),
    Key("LOSS_GAMMA", 2.0, "focal loss: how little easy anchors count", not_negative),
    BOX_LOSS,
    Key("BBOX_REG_WEIGHT", 4.0, "the box loss is divided by it", positive),
    Key("BBOX_REG_BETA", 0.11, "smooth_l1: width of its quadratic part; 0: L1", not_negative),
    Key("BBOX_REG_WEIGHTS", (10.0, 10.0, 5.0, 5.0), "scale of dx, dy, dw, dh", each(positive, 4)),
    Key("INFERENCE_TH", 0.05, "detections need a higher score", fraction),
    Key("PRE_NMS_TOP_N", 1000, "scores per level, before NMS", positive),
    Key("NMS_TH", 0.4, "IoU above which a detection is suppressed", fraction),
)

KEYS = (*_RPN, *_RETINANET)
