"""Keys of the run, the model, the backbone and neck, the RPN, RetinaNet, and the heads."""

from detlite.config.key import (
    Key,
    above,
    anchor_sizes,
    below_one,
    convention_fields,
    each,
    fraction,
    in_range,
    norm,
    not_negative,
    one_of,
    optional_norm,
    positive,
    strings,
)
from detlite.conventions import CONVENTIONS

# The keys of each section, with their descriptions.
SECTIONS: dict[str, dict[Key, str]] = {}

SECTIONS[""] = {
    Key("IMPORTS", (), strings): (
        "modules, or .py files relative to the file that names them, with your components and keys"
    ),
    Key("OUTPUT_DIR", "output"): "folder for logs, checkpoints and results",
    Key("SEED", 0, in_range(0, 2**63 - 2**16)): "seed of sampling, augmentation and initialization",
    Key("DTYPE", "float32", one_of("auto", "float32", "float16", "bfloat16")): (
        "precision of the forward pass; auto: bfloat16 if the device has instructions for it"
    ),
}
SECTIONS["MODEL"] = {
    Key("META_ARCHITECTURE", "GeneralizedRCNN"): (
        "GeneralizedRCNN, RetinaNet, ProposalNetwork (an RPN without heads) or a registered one"
    ),
    Key("DEVICE", "auto"): (
        "cpu, cuda, cuda:1 or another device of torch, see docs/devices.md; auto: CUDA if available"
    ),
    Key("MEMORY_FORMAT", "channels_last", one_of("channels_last", "contiguous")): (
        "layout of weights and maps; contiguous equals torchvision bit for bit, but is slower"
    ),
    Key("COMPILE", False): (
        "use torch.compile, which needs Triton or a C++ compiler; the first step takes minutes"
    ),
    Key("WEIGHT", ""): (
        "checkpoint to start from: a path, or a name that starts with https://, torchvision://, "
        "detectron2://, catalog://, timm://, hf:// or package://; empty: train from scratch"
    ),
    Key("WEIGHT_ROOT", "${XDG_CACHE_HOME:-~/.cache}/detlite/weights"): (
        "folder for downloaded weights; ${VARIABLE:-default} is expanded"
    ),
    Key("REINIT_HEADS", False): (
        "initialize what MODEL.WEIGHT lacks or has for other classes, instead of an error"
    ),
    Key("MASK_ON", False): "predict instance masks",
    Key("KEYPOINT_ON", False): "predict keypoints",
    Key("LOAD_PROPOSALS", False): "Fast R-CNN: use DATASETS.PROPOSAL_FILES_* instead of an RPN",
    Key("CLS_AGNOSTIC_BBOX_REG", False): "predict one box per RoI instead of one per class",
    Key("CONVENTION", "", one_of("", *CONVENTIONS)): (
        "framework whose numbers to reproduce (docs/conventions.md); empty: that of MODEL.WEIGHT"
    ),
    Key("CONVENTION_OVERRIDE", (), convention_fields): (
        "changes of single fields of the convention, such as [resize=floor, anchor_offset=0.5]"
    ),
}
SECTIONS["MODEL.BACKBONE"] = {
    Key("CONV_BODY", "R-50-C4"): (
        "backbone, a body and a neck: R-{18,34,50,101,152}, timm/<model> or a registered body with "
        "-C4, -C5, -FPN, -FPN-RETINANET or a registered neck; ViT-{T,S,B,L,H}-SFP (ViTDet), also "
        "for plain vision transformers of timm; MobileNetV3-Large-FPN (torchvision), FBNet"
    ),
    Key("FREEZE_CONV_BODY_AT", 2, in_range(0, 5)): (
        "number of frozen stages from the stem; of transformers, the embedding and quarters"
    ),
    Key("FREEZE_NORM_BELOW", 0, not_negative): (
        "freeze batch norm if a process (SyncBN: all) trains on fewer images per step; 0: never"
    ),
    Key("CHECKPOINT_ACTIVATIONS", False): (
        "recompute the activations of stages or blocks in the backward pass, to save memory"
    ),
}
SECTIONS["MODEL.RESNETS"] = {
    Key("NORM", "FrozenBN", norm): (
        "normalization: FrozenBN, BN, SyncBN (over the batches of all processes, needs GPUs), GN, "
        "or LN (over the channels at each position). Batch norm of timm models is trained with BN, "
        "otherwise frozen"
    ),
    Key("BN_EPSILON", 1e-5, positive): "added to the variance in BN and SyncBN of the backbone",
    Key("NUM_GROUPS", 1, positive): "groups of the 3x3 convolutions (ResNeXt)",
    Key("WIDTH_PER_GROUP", 64, positive): "channels per group in the first stage",
    Key("STRIDE_IN_1X1", True): (
        "stride of bottlenecks in the 1x1 convolution; False: in the 3x3 (torchvision)"
    ),
    Key("RES5_DILATION", 1, one_of(1, 2)): "dilation of the last stage; 2 keeps the stride at 16",
    Key("STEM_OUT_CHANNELS", 64, positive): "channels of the stem",
    Key("RES2_OUT_CHANNELS", None, positive, int): (
        "channels of the first stage; unset: 256 with bottlenecks, 64 with basic blocks"
    ),
    Key("BACKBONE_OUT_CHANNELS", None, positive, int): "channels of the FPN; unset: 256",
    Key("STAGE_WITH_DCN", (False,) * 4, each(one_of(True, False), 4)): (
        "use deformable 3x3 convolutions in the bottlenecks of res2, res3, res4 and res5"
    ),
    Key("WITH_MODULATED_DCN", False): "modulated deformable convolutions (version 2)",
    Key("DEFORMABLE_GROUPS", 1, positive): "channel groups with separate offsets",
}


SECTIONS["MODEL.FBNET"] = {
    Key("ARCH", "default"): "architecture of CONV_BODY FBNet and its heads",
    Key("ARCH_DEF", ""): "custom architecture as JSON, instead of ARCH",
    Key("BN_TYPE", "bn", one_of("bn", "gn", "af")): "norm: batch (bn), group (gn) or frozen (af)",
    Key("WIDTH_DIVISOR", 1, positive): "round channel counts to a multiple of this number",
    Key("DET_HEAD_LAST_SCALE", 1.0): (
        "relative channels of FBNet.roi_head's last layer; negative: to its blocks; 0: no layer"
    ),
}
SECTIONS["MODEL.VIT"] = {
    Key("WINDOW", 14, in_range(0, 256)): (
        "side of attention windows of a CONV_BODY ...-SFP, in patches of 16 pixels; 0: whole image"
    ),
    Key("GLOBAL_BLOCKS", 4, not_negative): (
        "number of evenly spaced blocks with global attention, including the last one"
    ),
    Key("IMAGE_SIZE", 1024, in_range(16)): (
        "image side in pixels of the position embeddings of a ViT-...-SFP, which are interpolated"
    ),
    Key("DROP_PATH", 0.0, below_one): (
        "stochastic depth of a ...-SFP or timm model: probability of skipping the last block"
    ),
}
SECTIONS["MODEL.FPN"] = {
    Key("NORM", "", optional_norm): (
        "normalization in the FPN; empty: none, or LN in the SFP of a vision transformer"
    ),
    Key("USE_RELU", False): "apply ReLU after the FPN's convolutions",
}
SECTIONS["MODEL.GROUP_NORM"] = {
    Key("DIM_PER_GP", -1): "channels per group; -1: use NUM_GROUPS",
    Key("NUM_GROUPS", 32): "number of groups; -1: use DIM_PER_GP",
    Key("EPSILON", 1e-5, positive): "value added to the variance",
}
_BOX_LOSS = {
    Key("BOX_LOSS", "smooth_l1"): (
        "box regression loss: smooth_l1 or l1 of the deltas, giou, or a registered loss"
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


SECTIONS["MODEL.RPN"] = {
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
SECTIONS["MODEL.RETINANET"] = {
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
        "RoI pooling: ROIAlign, ROIAlignV2 (half-pixel aligned), ROIPool or a registered one"
    ),
    Key("POOLER_RESOLUTION", 14, in_range(1, 256)): "side of the pooled features in cells",
    Key("POOLER_SAMPLING_RATIO", 0, in_range(0, 256)): "samples per bin and axis; 0: adaptive",
}
_CASCADE_WEIGHTS = ((10.0, 10.0, 5.0, 5.0), (20.0, 20.0, 10.0, 10.0), (30.0, 30.0, 15.0, 15.0))
SECTIONS["MODEL.ROI_HEADS"] = {
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
SECTIONS["MODEL.ROI_BOX_HEAD"] = {
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
        "passes of the box head, each on the previous boxes, with a foreground IoU higher by 0.1"
    ),
    **_box_loss(beta=1.0),
}
SECTIONS["MODEL.ROI_MASK_HEAD"] = {
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
SECTIONS["MODEL.ROI_KEYPOINT_HEAD"] = {
    Key("FEATURE_EXTRACTOR", "KeypointRCNNFeatureExtractor"): "registered feature extractor",
    Key("PREDICTOR", "KeypointRCNNPredictor"): "registered predictor",
    **_POOLER,
    Key("CONV_LAYERS", (512,) * 8, each(positive)): "channels of the 3x3 convolutions",
    Key("NUM_CLASSES", 17, positive): "keypoints per instance",
    Key("RESOLUTION", 14, positive): "side of the heat maps in cells; must match the head's output",
    Key("SHARE_BOX_FEATURE_EXTRACTOR", True): "use the features of the box head",
}
