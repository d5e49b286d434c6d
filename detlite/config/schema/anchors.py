"""Keys of the parts that predict at anchors: the RPN and RetinaNet."""

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

from .key import BOX_LOSS, BOX_WEIGHTS, NORMS, Key, box_loss, section

_RPN = section(
    "MODEL.RPN",
    Key("RPN_HEAD", "SingleConvRPNHead", "registered RPN head, for example SeparableRPNHead"),
    Key("NUM_CONVS", 1, "3x3 convolutions before the predictions", positive),
    Key(
        "ANCHOR_SIZES",
        (32, 64, 128, 256, 512),
        "anchor sides in pixels: all on a C4 map; one (or a tuple) for each FPN level",
        anchor_sizes,
    ),
    Key("ASPECT_RATIOS", (0.5, 1.0, 2.0), "anchor aspect ratios, height / width", each(positive)),
    Key("STRADDLE_THRESH", 0, "pixels by which training anchors may exceed the image; -1: any"),
    Key("FG_IOU_THRESHOLD", 0.7, "least IoU of a foreground anchor with an object", fraction),
    Key("BG_IOU_THRESHOLD", 0.3, "anchors with less IoU are background", fraction),
    Key("BATCH_SIZE_PER_IMAGE", 256, "anchors sampled per image for the loss", positive),
    Key("POSITIVE_FRACTION", 0.5, "largest foreground fraction of the sample", fraction),
    *box_loss(beta=1.0 / 9),
    Key("PRE_NMS_TOP_N_TRAIN", 12000, "best proposals per level before NMS, in training", positive),
    Key("PRE_NMS_TOP_N_TEST", 6000, "best proposals per level before NMS, in evaluation", positive),
    Key("POST_NMS_TOP_N_TRAIN", 2000, "proposals kept per level after NMS, in training", positive),
    Key("POST_NMS_TOP_N_TEST", 1000, "proposals kept per level after NMS, in evaluation", positive),
    Key("NMS_THRESH", 0.7, "IoU above which NMS suppresses a proposal", fraction),
    Key("MIN_SIZE", 0.0, "proposals with a shorter side, in pixels, are dropped", not_negative),
    Key("SCORE_THRESH", 0.0, "proposals with a lower objectness, 0 to 1, are dropped", fraction),
    Key("FPN_POST_NMS_TOP_N_TRAIN", 2000, "proposals kept over all levels, in training", positive),
    Key("FPN_POST_NMS_TOP_N_TEST", 2000, "proposals kept over all levels, in evaluation", positive),
    Key(
        "FPN_POST_NMS_PER_BATCH",
        True,
        "apply FPN_POST_NMS_TOP_N_TRAIN to the whole batch instead of each image",
    ),
)
_RETINANET = section(
    "MODEL.RETINANET",
    Key("NUM_CLASSES", 81, "number of categories + 1 for the background", in_range(2)),
    Key(
        "ANCHOR_SIZES",
        (32, 64, 128, 256, 512),
        "side of the smallest anchors in pixels, one (or a tuple) for each level",
        anchor_sizes,
    ),
    Key("OCTAVE", 2.0, "ratio of the anchor sizes of a level and the next one", above(1)),
    Key("SCALES_PER_OCTAVE", 3, "anchor sizes per level, spread evenly over OCTAVE", positive),
    Key("ASPECT_RATIOS", (0.5, 1.0, 2.0), "anchor aspect ratios, height / width", each(positive)),
    Key("USE_C5", True, "compute P6 of a CONV_BODY R-...-FPN-RETINANET from C5; False: from P5"),
    Key("P7_RELU", True, "apply ReLU to P6 before computing P7; False: no ReLU (mmdetection)"),
    Key("NUM_CONVS", 4, "3x3 convolutions of each tower", not_negative),
    Key(
        "NORM",
        "",
        "normalization in the towers; BN and SyncBN have separate statistics for each level; "
        "empty: none",
        one_of("", *NORMS),
    ),
    Key("PRIOR_PROB", 0.01, "initial foreground probability of every anchor", in_range(1e-6, 0.5)),
    Key("FG_IOU_THRESHOLD", 0.5, "least IoU of a foreground anchor with an object", fraction),
    Key("BG_IOU_THRESHOLD", 0.4, "anchors with less IoU are background", fraction),
    Key("LOSS_ALPHA", 0.25, "focal loss: weight alpha of the foreground", fraction),
    Key("LOSS_GAMMA", 2.0, "focal loss: exponent gamma, which favors hard anchors", not_negative),
    BOX_LOSS,
    Key("BBOX_REG_WEIGHT", 4.0, "divisor of the box regression loss", positive),
    Key("BBOX_REG_BETA", 0.11, "for smooth_l1: width of the quadratic part; 0 is L1", not_negative),
    BOX_WEIGHTS,
    Key("INFERENCE_TH", 0.05, "detections with a lower or equal score are dropped", fraction),
    Key("PRE_NMS_TOP_N", 1000, "highest scores per level before NMS", positive),
    Key("NMS_TH", 0.4, "IoU above which NMS suppresses a detection", fraction),
)

KEYS = (*_RPN, *_RETINANET)
