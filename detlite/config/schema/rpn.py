"""Keys of region proposals."""

from __future__ import annotations

from ..checks import anchor_sizes, each, fraction, not_negative, positive
from .key import Key, box_loss

KEYS = (
    Key(
        "MODEL.LOAD_PROPOSALS",
        False,
        "Fast R-CNN: no RPN; regions come from DATASETS.PROPOSAL_FILES_TRAIN and _TEST",
    ),
    Key("MODEL.RPN.RPN_HEAD", "SingleConvRPNHead", "registered RPN head"),
    Key("MODEL.RPN.NUM_CONVS", 1, "3x3s before its predictions", positive),
    Key(
        "MODEL.RPN.ANCHOR_SIZES",
        (32, 64, 128, 256, 512),
        "side of the anchors in pixels: all on a C4 map; one (or a tuple) for each FPN level",
        anchor_sizes,
    ),
    Key("MODEL.RPN.ASPECT_RATIOS", (0.5, 1.0, 2.0), "height / width", each(positive)),
    Key(
        "MODEL.RPN.STRADDLE_THRESH",
        0,
        "pixels an anchor may cross the image border in training; -1: any",
    ),
    Key("MODEL.RPN.FG_IOU_THRESHOLD", 0.7, "IoU from which an anchor is foreground", fraction),
    Key("MODEL.RPN.BG_IOU_THRESHOLD", 0.3, "IoU below which an anchor is background", fraction),
    Key("MODEL.RPN.BATCH_SIZE_PER_IMAGE", 256, "anchors sampled per image", positive),
    Key("MODEL.RPN.POSITIVE_FRACTION", 0.5, "most foreground among them", fraction),
    *box_loss("RPN", beta=1.0 / 9),
    Key("MODEL.RPN.PRE_NMS_TOP_N_TRAIN", 12000, "per level, before NMS, training", positive),
    Key("MODEL.RPN.PRE_NMS_TOP_N_TEST", 6000, "per level, before NMS, test", positive),
    Key("MODEL.RPN.POST_NMS_TOP_N_TRAIN", 2000, "per level, after NMS, training", positive),
    Key("MODEL.RPN.POST_NMS_TOP_N_TEST", 1000, "per level, after NMS, test", positive),
    Key("MODEL.RPN.NMS_THRESH", 0.7, "IoU above which a proposal is suppressed", fraction),
    Key("MODEL.RPN.MIN_SIZE", 0.0, "proposals with a smaller side are dropped", not_negative),
    Key("MODEL.RPN.FPN_POST_NMS_TOP_N_TRAIN", 2000, "over all levels, training", positive),
    Key("MODEL.RPN.FPN_POST_NMS_TOP_N_TEST", 2000, "over all levels, test", positive),
    Key(
        "MODEL.RPN.FPN_POST_NMS_PER_BATCH",
        True,
        "in training, count FPN_POST_NMS_TOP_N_TRAIN over the batch instead of per image",
    ),
)
