"""Keys of the heads: boxes, masks and keypoints."""

from __future__ import annotations

from detlite.config.checks import each, fraction, in_range, not_negative, one_of, positive

from .key import NORMS, Key, box_loss, section

_POOLER = (
    Key("POOLER_TYPE", "ROIAlign", "how regions are pooled (ROIAlignV2: half-pixel aligned)"),
    Key("POOLER_RESOLUTION", 14, "side of a pooled region", positive),
    Key("POOLER_SAMPLING_RATIO", 0, "samples per bin side; 0: adaptive", not_negative),
)
_ROI_HEADS = section(
    "MODEL.ROI_HEADS",
    Key("FG_IOU_THRESHOLD", 0.5, "IoU from which a proposal is foreground", fraction),
    Key("BG_IOU_THRESHOLD", 0.5, "IoU below which it is background", fraction),
    Key("BBOX_REG_WEIGHTS", (10.0, 10.0, 5.0, 5.0), "scale of dx, dy, dw, dh", each(positive, 4)),
    Key(
        "CASCADE_IOUS",
        (),
        "a cascade of box heads: the foreground IoU of each stage; empty: one head",
        each(fraction, empty=True),
    ),
    Key(
        "CASCADE_BBOX_REG_WEIGHTS",
        ((10.0, 10.0, 5.0, 5.0), (20.0, 20.0, 10.0, 10.0), (30.0, 30.0, 15.0, 15.0)),
        "BBOX_REG_WEIGHTS of each stage of a cascade",
        each(each(positive, 4)),
    ),
    Key("BATCH_SIZE_PER_IMAGE", 512, "proposals sampled per image", positive),
    Key("POSITIVE_FRACTION", 0.25, "most foreground among them", fraction),
    Key("SCORE_THRESH", 0.05, "detections need a higher score", fraction),
    Key("NMS", 0.5, "IoU above which a detection is suppressed", fraction),
    Key("DETECTIONS_PER_IMG", 100, "detections kept per image", positive),
)
_ROI_BOX_HEAD = section(
    "MODEL.ROI_BOX_HEAD",
    Key(
        "FEATURE_EXTRACTOR",
        "ResNet50Conv5ROIFeatureExtractor",
        "registered extractor; SeparableXconv1fcFeatureExtractor: of separable convolutions",
    ),
    Key("PREDICTOR", "FastRCNNPredictor", "registered predictor"),
    *_POOLER,
    Key("NUM_CLASSES", 81, "categories + 1 (background)", in_range(2)),
    Key("MLP_HEAD_DIM", 1024, "width of the 2-MLP head", positive),
    Key("NUM_STACKED_CONVS", 4, "convolutions of the conv head", not_negative),
    Key("CONV_HEAD_DIM", 256, "their channels", positive),
    Key("DILATION", 1, "their dilation", positive),
    Key("NORM", "", "norm in the box head; empty: none", one_of("", *NORMS)),
    *box_loss(beta=1.0),
)
_ROI_MASK_HEAD = section(
    "MODEL.ROI_MASK_HEAD",
    Key(
        "FEATURE_EXTRACTOR",
        "ResNet50Conv5ROIFeatureExtractor",
        "registered extractor; SeparableConvFeatureExtractor: of separable convolutions",
    ),
    Key("PREDICTOR", "MaskRCNNC4Predictor", "registered predictor"),
    *_POOLER,
    Key("CONV_LAYERS", (256, 256, 256, 256), "channels of its 3x3s", each(positive)),
    Key("DILATION", 1, "dilation of its 3x3s", positive),
    Key("NORM", "", "norm in the mask head; empty: none", one_of("", *NORMS)),
    Key("NUM_HEADS", 1, "mask heads, whose probabilities are averaged", positive),
    Key("RESOLUTION", 14, "side of the predicted masks; must be what the head gives", positive),
    Key("SHARE_BOX_FEATURE_EXTRACTOR", True, "reuse the box head's features"),
    Key("POSTPROCESS_MASKS_THRESHOLD", 0.5, "least probability of a mask's pixels", fraction),
)
_ROI_KEYPOINT_HEAD = section(
    "MODEL.ROI_KEYPOINT_HEAD",
    Key("FEATURE_EXTRACTOR", "KeypointRCNNFeatureExtractor", "registered extractor"),
    Key("PREDICTOR", "KeypointRCNNPredictor", "registered predictor"),
    *_POOLER,
    Key("CONV_LAYERS", (512,) * 8, "channels of its 3x3s", each(positive)),
    Key("NUM_CLASSES", 17, "keypoints of an instance", positive),
    Key("RESOLUTION", 14, "side of the heat maps; must be what the head gives", positive),
    Key("SHARE_BOX_FEATURE_EXTRACTOR", True, "reuse the box head's features"),
)

KEYS = (*_ROI_HEADS, *_ROI_BOX_HEAD, *_ROI_MASK_HEAD, *_ROI_KEYPOINT_HEAD)
