"""Keys of the RPN, of RetinaNet, and of the box, mask and keypoint heads."""

from detlite.config.key import (
    Key,
    above,
    anchor_sizes,
    each,
    fraction,
    in_range,
    not_negative,
    optional_norm,
    positive,
)

_BOX_LOSS = {
    Key("BOX_LOSS", "smooth_l1"): (
        "box regression loss: smooth_l1 or l1 of the deltas, giou (1 - GIoU of the boxes), or a "
        "registered loss of the boxes"
    ),
}
_BOX_WEIGHTS = {
    Key("BBOX_REG_WEIGHTS", (10.0, 10.0, 5.0, 5.0), each(positive, 4)): (
        "weights of the box deltas dx, dy, dw, dh"
    ),
}


def _box_loss(beta: float) -> dict[Key, str]:
    """Return the keys of a box regression loss; `beta` is the default of SMOOTH_L1_BETA."""
    return {
        **_BOX_LOSS,
        Key("BOX_LOSS_WEIGHT", 1.0, not_negative): "weight of the box regression loss",
        Key("SMOOTH_L1_BETA", beta, not_negative): "smooth_l1: width of the quadratic part; 0: L1",
    }


_RPN = {
    Key("RPN_HEAD", "SingleConvRPNHead"): "registered RPN head, for example SeparableRPNHead",
    Key("NUM_CONVS", 1, positive): "3x3 convolutions before the predictions",
    Key("ANCHOR_SIZES", (32, 64, 128, 256, 512), anchor_sizes): (
        "anchor sides in pixels; FPN: one side (or a tuple) for each level"
    ),
    Key("ASPECT_RATIOS", (0.5, 1.0, 2.0), each(positive)): "anchor aspect ratios, height / width",
    Key("STRADDLE_THRESH", 0): "pixels by which training anchors may exceed the image; -1: any",
    Key("FG_IOU_THRESHOLD", 0.7, fraction): "minimum IoU of foreground anchors with an object",
    Key("BG_IOU_THRESHOLD", 0.3, fraction): "anchors with a lower IoU are background",
    Key("BATCH_SIZE_PER_IMAGE", 256, positive): "anchors sampled per image for the loss",
    Key("POSITIVE_FRACTION", 0.5, fraction): "maximum fraction of foreground in the sample",
    **_box_loss(beta=1.0 / 9),
    Key("PRE_NMS_TOP_N_TRAIN", 12000, positive): "top proposals per level before NMS, in training",
    Key("PRE_NMS_TOP_N_TEST", 6000, positive): "top proposals per level before NMS, in evaluation",
    Key("POST_NMS_TOP_N_TRAIN", 2000, positive): "proposals kept per level after NMS, in training",
    Key("POST_NMS_TOP_N_TEST", 1000, positive): "proposals kept per level after NMS, in evaluation",
    Key("NMS_THRESH", 0.7, fraction): "IoU above which NMS suppresses a proposal",
    Key("MIN_SIZE", 0.0, not_negative): "drop proposals with a shorter side, in pixels",
    Key("SCORE_THRESH", 0.0, fraction): "drop proposals with a lower objectness, 0 to 1",
    Key("FPN_POST_NMS_TOP_N_TRAIN", 2000, positive): "proposals kept over all levels, in training",
    Key("FPN_POST_NMS_TOP_N_TEST", 2000, positive): "proposals kept over all levels, in evaluation",
    Key("FPN_POST_NMS_PER_BATCH", True): (
        "apply FPN_POST_NMS_TOP_N_TRAIN to the whole batch instead of each image"
    ),
}
_RETINANET = {
    Key("NUM_CLASSES", 81, in_range(2)): "number of categories + 1 for the background",
    Key("ANCHOR_SIZES", (32, 64, 128, 256, 512), anchor_sizes): (
        "side of the smallest anchors in pixels; one side (or a tuple) for each level"
    ),
    Key("OCTAVE", 2.0, above(1)): "ratio between the anchor sizes of neighboring levels",
    Key("SCALES_PER_OCTAVE", 3, positive): "anchor sizes per level, spread evenly over OCTAVE",
    Key("ASPECT_RATIOS", (0.5, 1.0, 2.0), each(positive)): "anchor aspect ratios, height / width",
    Key("USE_C5", True): "compute P6 of a CONV_BODY R-...-FPN-RETINANET from C5; False: from P5",
    Key("P7_RELU", True): "apply ReLU to P6 before computing P7; False: no ReLU (mmdetection)",
    Key("NUM_CONVS", 4, not_negative): "3x3 convolutions of each tower",
    Key("NORM", "", optional_norm): (
        "normalization in the towers; BN and SyncBN have separate statistics for each level; "
        "empty: none"
    ),
    Key("PRIOR_PROB", 0.01, in_range(1e-6, 0.5)): "initial foreground probability of every anchor",
    Key("FG_IOU_THRESHOLD", 0.5, fraction): "minimum IoU of foreground anchors with an object",
    Key("BG_IOU_THRESHOLD", 0.4, fraction): "anchors with a lower IoU are background",
    Key("LOSS_ALPHA", 0.25, fraction): "focal loss: weight alpha of the foreground",
    Key("LOSS_GAMMA", 2.0, not_negative): "focal loss: exponent gamma, which favors hard anchors",
    **_BOX_LOSS,
    Key("BBOX_REG_WEIGHT", 4.0, positive): "divisor of the box regression loss",
    Key("BBOX_REG_BETA", 0.11, not_negative): "smooth_l1: width of the quadratic part; 0: L1",
    **_BOX_WEIGHTS,
    Key("INFERENCE_TH", 0.05, fraction): "drop detections with a lower or equal score",
    Key("PRE_NMS_TOP_N", 1000, positive): "highest-scoring boxes per level before NMS",
    Key("NMS_TH", 0.4, fraction): "IoU above which NMS suppresses a detection",
}
_POOLER = {
    Key("POOLER_TYPE", "ROIAlign"): (
        "RoI pooling: ROIAlign, ROIAlignV2 (half-pixel aligned), ROIPool or a registered name"
    ),
    Key("POOLER_RESOLUTION", 14, in_range(1, 256)): "side of the pooled features in cells",
    Key("POOLER_SAMPLING_RATIO", 0, in_range(0, 256)): "samples per bin and axis; 0: adaptive",
}
_CASCADE_WEIGHTS = ((10.0, 10.0, 5.0, 5.0), (20.0, 20.0, 10.0, 10.0), (30.0, 30.0, 15.0, 15.0))
_ROI_HEADS = {
    Key("FG_IOU_THRESHOLD", 0.5, fraction): "minimum IoU of foreground proposals with an object",
    Key("BG_IOU_THRESHOLD", 0.5, fraction): "proposals with a lower IoU are background",
    **_BOX_WEIGHTS,
    Key("CASCADE_IOUS", (), each(fraction, empty=True)): (
        "Cascade R-CNN: the foreground IoU of each stage; empty: a single box head"
    ),
    Key("CASCADE_BBOX_REG_WEIGHTS", _CASCADE_WEIGHTS, each(each(positive, 4))): (
        "BBOX_REG_WEIGHTS of each cascade stage"
    ),
    Key("SAMPLER", "random"): "registered sampler of the proposals that train the heads",
    Key("BATCH_SIZE_PER_IMAGE", 512, positive): "proposals sampled per image for the loss",
    Key("POSITIVE_FRACTION", 0.25, fraction): "maximum fraction of foreground in the sample",
    Key("SCORE_THRESH", 0.05, fraction): "drop detections with a lower or equal score",
    Key("NMS", 0.5, fraction): "IoU above which NMS suppresses a detection",
    Key("DETECTIONS_PER_IMG", 100, positive): "maximum number of detections per image",
}
_ROI_BOX_HEAD = {
    Key("FEATURE_EXTRACTOR", "ResNet50Conv5ROIFeatureExtractor"): (
        "registered feature extractor, for example SeparableXconv1fcFeatureExtractor"
    ),
    Key("PREDICTOR", "FastRCNNPredictor"): "registered predictor",
    **_POOLER,
    Key("NUM_CLASSES", 81, in_range(2)): "number of categories + 1 for the background",
    Key("MLP_HEAD_DIM", 1024, positive): "hidden units of the 2-MLP head",
    Key("NUM_STACKED_CONVS", 4, not_negative): "3x3 convolutions of the convolutional head",
    Key("CONV_HEAD_DIM", 256, positive): "channels of the convolutional head",
    Key("DILATION", 1, positive): "dilation of the convolutional head",
    Key("NORM", "", optional_norm): "normalization in the box head; empty: none",
    Key("PASSES", 1, in_range(1, 5)): (
        "number of times that the head is applied, each time to the boxes of the previous pass; "
        "the scores are averaged, and masks and keypoints use the last boxes. In training, the "
        "foreground threshold starts at FG_IOU_THRESHOLD and increases by 0.1 per pass, up to 0.9"
    ),
    **_box_loss(beta=1.0),
}
_ROI_MASK_HEAD = {
    Key("FEATURE_EXTRACTOR", "ResNet50Conv5ROIFeatureExtractor"): (
        "registered feature extractor; SeparableConvFeatureExtractor uses separable convolutions"
    ),
    Key("PREDICTOR", "MaskRCNNC4Predictor"): "registered predictor",
    **_POOLER,
    Key("CONV_LAYERS", (256, 256, 256, 256), each(positive)): "channels of the 3x3 convolutions",
    Key("DILATION", 1, positive): "dilation of the 3x3 convolutions",
    Key("NORM", "", optional_norm): "normalization in the mask head; empty: none",
    Key("NUM_HEADS", 1, positive): "number of mask heads; their probabilities are averaged",
    Key("RESOLUTION", 14, positive): "side of the predicted masks; must match the head's output",
    Key("SHARE_BOX_FEATURE_EXTRACTOR", True): "use the features of the box head",
    Key("POSTPROCESS_MASKS_THRESHOLD", 0.5, fraction): "minimum probability of a mask pixel",
}
_ROI_KEYPOINT_HEAD = {
    Key("FEATURE_EXTRACTOR", "KeypointRCNNFeatureExtractor"): "registered feature extractor",
    Key("PREDICTOR", "KeypointRCNNPredictor"): "registered predictor",
    **_POOLER,
    Key("CONV_LAYERS", (512,) * 8, each(positive)): "channels of the 3x3 convolutions",
    Key("NUM_CLASSES", 17, positive): "keypoints per instance",
    Key("RESOLUTION", 14, positive): "side of the heat maps in cells; must match the head's output",
    Key("SHARE_BOX_FEATURE_EXTRACTOR", True): "use the features of the box head",
}

SECTIONS = {
    "MODEL.RPN": _RPN,
    "MODEL.RETINANET": _RETINANET,
    "MODEL.ROI_HEADS": _ROI_HEADS,
    "MODEL.ROI_BOX_HEAD": _ROI_BOX_HEAD,
    "MODEL.ROI_MASK_HEAD": _ROI_MASK_HEAD,
    "MODEL.ROI_KEYPOINT_HEAD": _ROI_KEYPOINT_HEAD,
}
