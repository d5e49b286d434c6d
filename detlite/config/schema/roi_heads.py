"""Keys of the box, mask and keypoint heads."""

from detlite.config.checks import each, fraction, in_range, not_negative, one_of, positive

from .key import BOX_WEIGHTS, NORMS, Key, box_loss, section

_POOLER = (
    Key(
        "POOLER_TYPE",
        "ROIAlign",
        "RoI pooling: ROIAlign, ROIAlignV2 (half-pixel aligned), ROIPool or a registered name",
    ),
    Key("POOLER_RESOLUTION", 14, "side of the pooled features in cells", positive),
    Key("POOLER_SAMPLING_RATIO", 0, "samples per bin and axis; 0: adaptive", not_negative),
)
_ROI_HEADS = section(
    "MODEL.ROI_HEADS",
    Key("FG_IOU_THRESHOLD", 0.5, "least IoU of a foreground proposal with an object", fraction),
    Key("BG_IOU_THRESHOLD", 0.5, "proposals with less IoU are background", fraction),
    BOX_WEIGHTS,
    Key(
        "CASCADE_IOUS",
        (),
        "Cascade R-CNN: the foreground IoU of each stage; empty: a single box head",
        each(fraction, empty=True),
    ),
    Key(
        "CASCADE_BBOX_REG_WEIGHTS",
        ((10.0, 10.0, 5.0, 5.0), (20.0, 20.0, 10.0, 10.0), (30.0, 30.0, 15.0, 15.0)),
        "BBOX_REG_WEIGHTS of each cascade stage",
        each(each(positive, 4)),
    ),
    Key("BATCH_SIZE_PER_IMAGE", 512, "proposals sampled per image for the loss", positive),
    Key("POSITIVE_FRACTION", 0.25, "largest foreground fraction of the sample", fraction),
    Key("SCORE_THRESH", 0.05, "detections with a lower or equal score are dropped", fraction),
    Key("NMS", 0.5, "IoU above which NMS suppresses a detection", fraction),
    Key("DETECTIONS_PER_IMG", 100, "highest-scoring detections kept per image", positive),
)
_ROI_BOX_HEAD = section(
    "MODEL.ROI_BOX_HEAD",
    Key(
        "FEATURE_EXTRACTOR",
        "ResNet50Conv5ROIFeatureExtractor",
        "registered feature extractor; SeparableXconv1fcFeatureExtractor uses separable "
        "convolutions",
    ),
    Key("PREDICTOR", "FastRCNNPredictor", "registered predictor"),
    *_POOLER,
    Key("NUM_CLASSES", 81, "number of categories + 1 for the background", in_range(2)),
    Key("MLP_HEAD_DIM", 1024, "hidden units of the 2-MLP head", positive),
    Key("NUM_STACKED_CONVS", 4, "3x3 convolutions of the convolutional head", not_negative),
    Key("CONV_HEAD_DIM", 256, "channels of these convolutions", positive),
    Key("DILATION", 1, "dilation of these convolutions", positive),
    Key("NORM", "", "normalization in the box head; empty: none", one_of("", *NORMS)),
    Key("LOSS", "cross_entropy", "classification loss", one_of("cross_entropy", "focal")),
    Key("FOCAL_GAMMA", 2.0, "for focal: exponent, higher for more weight of errors", not_negative),
    Key(
        "CLASS_WEIGHTS",
        (),
        "factors of the classification loss for the background and each category; empty: all 1",
        each(not_negative, empty=True),
    ),
    *box_loss(beta=1.0),
)
_ROI_MASK_HEAD = section(
    "MODEL.ROI_MASK_HEAD",
    Key(
        "FEATURE_EXTRACTOR",
        "ResNet50Conv5ROIFeatureExtractor",
        "registered feature extractor; SeparableConvFeatureExtractor uses separable convolutions",
    ),
    Key("PREDICTOR", "MaskRCNNC4Predictor", "registered predictor"),
    *_POOLER,
    Key("CONV_LAYERS", (256, 256, 256, 256), "channels of the 3x3 convolutions", each(positive)),
    Key("DILATION", 1, "dilation of the 3x3 convolutions", positive),
    Key("NORM", "", "normalization in the mask head; empty: none", one_of("", *NORMS)),
    Key("NUM_HEADS", 1, "number of mask heads, whose probabilities are averaged", positive),
    Key("RESOLUTION", 14, "side of the predicted masks; must match the head's output", positive),
    Key("SHARE_BOX_FEATURE_EXTRACTOR", True, "use the features of the box head"),
    Key("POSTPROCESS_MASKS_THRESHOLD", 0.5, "least probability of a pixel of a mask", fraction),
)
_ROI_KEYPOINT_HEAD = section(
    "MODEL.ROI_KEYPOINT_HEAD",
    Key("FEATURE_EXTRACTOR", "KeypointRCNNFeatureExtractor", "registered feature extractor"),
    Key("PREDICTOR", "KeypointRCNNPredictor", "registered predictor"),
    *_POOLER,
    Key("CONV_LAYERS", (512,) * 8, "channels of the 3x3 convolutions", each(positive)),
    Key("NUM_CLASSES", 17, "keypoints per instance", positive),
    Key("RESOLUTION", 14, "side of the heat maps in cells; must match the head's output", positive),
    Key("SHARE_BOX_FEATURE_EXTRACTOR", True, "use the features of the box head"),
)

KEYS = (*_ROI_HEADS, *_ROI_BOX_HEAD, *_ROI_MASK_HEAD, *_ROI_KEYPOINT_HEAD)
