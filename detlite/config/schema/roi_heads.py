"""Keys of the heads: boxes, masks and keypoints."""

from __future__ import annotations

from ..checks import each, fraction, in_range, not_negative, one_of, positive
from .key import NORMS, Key, box_loss


def _head_pooler(head: str) -> list[Key]:
    prefix = f"MODEL.{head}."
    return [
        Key(
            prefix + "POOLER_TYPE",
            "ROIAlign",
            "how regions are pooled (ROIAlignV2: half-pixel aligned)",
        ),
        Key(prefix + "POOLER_RESOLUTION", 14, "side of a pooled region", positive),
        Key(prefix + "POOLER_SAMPLING_RATIO", 0, "samples per bin side; 0: adaptive", not_negative),
    ]


KEYS = (
    Key(
        "MODEL.ROI_HEADS.FG_IOU_THRESHOLD", 0.5, "IoU from which a proposal is foreground", fraction
    ),
    Key("MODEL.ROI_HEADS.BG_IOU_THRESHOLD", 0.5, "IoU below which it is background", fraction),
    Key(
        "MODEL.ROI_HEADS.BBOX_REG_WEIGHTS",
        (10.0, 10.0, 5.0, 5.0),
        "scale of dx, dy, dw, dh",
        each(positive, 4),
    ),
    Key(
        "MODEL.ROI_HEADS.CASCADE_IOUS",
        (),
        "a cascade of box heads: the foreground IoU of each stage; empty: one head",
        each(fraction, empty=True),
    ),
    Key(
        "MODEL.ROI_HEADS.CASCADE_BBOX_REG_WEIGHTS",
        ((10.0, 10.0, 5.0, 5.0), (20.0, 20.0, 10.0, 10.0), (30.0, 30.0, 15.0, 15.0)),
        "BBOX_REG_WEIGHTS of each stage of a cascade",
        each(each(positive, 4)),
    ),
    Key("MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", 512, "proposals sampled per image", positive),
    Key("MODEL.ROI_HEADS.POSITIVE_FRACTION", 0.25, "most foreground among them", fraction),
    Key("MODEL.ROI_HEADS.SCORE_THRESH", 0.05, "detections need a higher score", fraction),
    Key("MODEL.ROI_HEADS.NMS", 0.5, "IoU above which a detection is suppressed", fraction),
    Key("MODEL.ROI_HEADS.DETECTIONS_PER_IMG", 100, "detections kept per image", positive),
    Key(
        "MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR",
        "ResNet50Conv5ROIFeatureExtractor",
        "registered extractor",
    ),
    Key("MODEL.ROI_BOX_HEAD.PREDICTOR", "FastRCNNPredictor", "registered predictor"),
    *_head_pooler("ROI_BOX_HEAD"),
    Key("MODEL.ROI_BOX_HEAD.NUM_CLASSES", 81, "categories + 1 (background)", in_range(2)),
    Key("MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM", 1024, "width of the 2-MLP head", positive),
    Key("MODEL.ROI_BOX_HEAD.NUM_STACKED_CONVS", 4, "convolutions of the conv head", not_negative),
    Key("MODEL.ROI_BOX_HEAD.CONV_HEAD_DIM", 256, "their channels", positive),
    Key("MODEL.ROI_BOX_HEAD.DILATION", 1, "their dilation", positive),
    Key("MODEL.ROI_BOX_HEAD.NORM", "", "norm in the box head; empty: none", one_of("", *NORMS)),
    *box_loss("ROI_BOX_HEAD", beta=1.0),
    Key(
        "MODEL.ROI_MASK_HEAD.FEATURE_EXTRACTOR",
        "ResNet50Conv5ROIFeatureExtractor",
        "registered extractor",
    ),
    Key("MODEL.ROI_MASK_HEAD.PREDICTOR", "MaskRCNNC4Predictor", "registered predictor"),
    *_head_pooler("ROI_MASK_HEAD"),
    Key(
        "MODEL.ROI_MASK_HEAD.CONV_LAYERS",
        (256, 256, 256, 256),
        "channels of its 3x3s",
        each(positive),
    ),
    Key("MODEL.ROI_MASK_HEAD.DILATION", 1, "dilation of its 3x3s", positive),
    Key("MODEL.ROI_MASK_HEAD.NORM", "", "norm in the mask head; empty: none", one_of("", *NORMS)),
    Key(
        "MODEL.ROI_MASK_HEAD.RESOLUTION",
        14,
        "side of the predicted masks; must be what the head gives",
        positive,
    ),
    Key("MODEL.ROI_MASK_HEAD.SHARE_BOX_FEATURE_EXTRACTOR", True, "reuse the box head's features"),
    Key(
        "MODEL.ROI_MASK_HEAD.POSTPROCESS_MASKS_THRESHOLD",
        0.5,
        "probability from which a pixel belongs to a mask",
        fraction,
    ),
    Key(
        "MODEL.ROI_KEYPOINT_HEAD.FEATURE_EXTRACTOR",
        "KeypointRCNNFeatureExtractor",
        "registered extractor",
    ),
    Key("MODEL.ROI_KEYPOINT_HEAD.PREDICTOR", "KeypointRCNNPredictor", "registered predictor"),
    *_head_pooler("ROI_KEYPOINT_HEAD"),
    Key(
        "MODEL.ROI_KEYPOINT_HEAD.CONV_LAYERS",
        (512,) * 8,
        "channels of its 3x3s",
        each(positive),
    ),
    Key("MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES", 17, "keypoints of an instance", positive),
    Key(
        "MODEL.ROI_KEYPOINT_HEAD.RESOLUTION",
        14,
        "side of the heat maps; must be what the head gives",
        positive,
    ),
    Key(
        "MODEL.ROI_KEYPOINT_HEAD.SHARE_BOX_FEATURE_EXTRACTOR",
        True,
        "reuse the box head's features",
    ),
)
