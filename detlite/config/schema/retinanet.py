"""Keys of RetinaNet."""

from __future__ import annotations

from ..checks import above, anchor_sizes, each, fraction, in_range, not_negative, one_of, positive
from .key import NORMS, Key

KEYS = (
    Key("MODEL.RETINANET.NUM_CLASSES", 81, "categories + 1 (background)", in_range(2)),
    Key(
        "MODEL.RETINANET.ANCHOR_SIZES",
        (32, 64, 128, 256, 512),
        "side of the smallest anchors in pixels: one (or a tuple) for each level",
        anchor_sizes,
    ),
    Key("MODEL.RETINANET.OCTAVE", 2.0, "factor from each size to the next in line", above(1)),
    Key("MODEL.RETINANET.SCALES_PER_OCTAVE", 3, "sizes on the way there", positive),
    Key("MODEL.RETINANET.ASPECT_RATIOS", (0.5, 1.0, 2.0), "height / width", each(positive)),
    Key(
        "MODEL.RETINANET.USE_C5",
        True,
        "in a CONV_BODY R-...-FPN-RETINANET, P6 is made from C5; False: from P5",
    ),
    Key("MODEL.RETINANET.NUM_CONVS", 4, "3x3s of each tower", not_negative),
    Key("MODEL.RETINANET.NORM", "", "norm in the towers; empty: none", one_of("", *NORMS)),
    Key(
        "MODEL.RETINANET.PRIOR_PROB",
        0.01,
        "score that every anchor starts with",
        in_range(1e-6, 0.5),
    ),
    Key(
        "MODEL.RETINANET.FG_IOU_THRESHOLD", 0.5, "IoU from which an anchor is foreground", fraction
    ),
    Key(
        "MODEL.RETINANET.BG_IOU_THRESHOLD", 0.4, "IoU below which an anchor is background", fraction
    ),
    Key("MODEL.RETINANET.LOSS_ALPHA", 0.25, "focal loss: weight of the foreground", fraction),
    Key(
        "MODEL.RETINANET.LOSS_GAMMA", 2.0, "focal loss: how little easy anchors count", not_negative
    ),
    Key(
        "MODEL.RETINANET.BOX_LOSS",
        "smooth_l1",
        "loss of the regressed boxes: of their deltas, or 1 - GIoU of the boxes",
        one_of("smooth_l1", "l1", "giou"),
    ),
    Key("MODEL.RETINANET.BBOX_REG_WEIGHT", 4.0, "the box loss is divided by it", positive),
    Key(
        "MODEL.RETINANET.BBOX_REG_BETA",
        0.11,
        "smooth_l1: width of its quadratic part; 0: L1",
        not_negative,
    ),
    Key(
        "MODEL.RETINANET.BBOX_REG_WEIGHTS",
        (10.0, 10.0, 5.0, 5.0),
        "scale of dx, dy, dw, dh",
        each(positive, 4),
    ),
    Key("MODEL.RETINANET.INFERENCE_TH", 0.05, "detections need a higher score", fraction),
    Key("MODEL.RETINANET.PRE_NMS_TOP_N", 1000, "scores per level, before NMS", positive),
    Key("MODEL.RETINANET.NMS_TH", 0.4, "IoU above which a detection is suppressed", fraction),
)
