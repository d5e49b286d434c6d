"""The schema: every config key with its default, what it may be, and what it does.

Names and defaults follow maskrcnn-benchmark, so that its YAML files keep their meaning. A default
of None marks a key that is derived from others (`derive.py`) and may only restate them.
`docs/config.md` is generated from this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .checks import (
    Check,
    above,
    anchor_sizes,
    catalog,
    each,
    expected_results,
    in_range,
    one_of,
    strings,
)

NORMS = ("FrozenBN", "BN", "SyncBN", "GN")
_positive = above(0)
_unit = in_range(0, 1)
_count = in_range(0)


@dataclass(frozen=True)
class Key:
    """One row of the schema; `check` returns None or says what the value should be."""

    name: str
    default: Any
    doc: str
    check: Check | None = None
    derived_type: type | None = None  # the type of a key whose default is None


def _head_pooler(head: str) -> list[Key]:
    prefix = f"MODEL.{head}."
    return [
        Key(
            prefix + "POOLER_TYPE",
            "ROIAlign",
            "how regions are pooled (ROIAlignV2: half-pixel aligned)",
        ),
        Key(prefix + "POOLER_RESOLUTION", 14, "side of a pooled region", _positive),
        Key(prefix + "POOLER_SAMPLING_RATIO", 0, "samples per bin side; 0: adaptive", _count),
        Key(
            prefix + "POOLER_SCALES",
            None,
            "1 / stride of the pooled levels; restates BACKBONE.CONV_BODY",
            each(_positive),
            tuple,
        ),
    ]


def _box_loss(part: str, beta: float) -> list[Key]:
    prefix = f"MODEL.{part}."
    return [
        Key(
            prefix + "BOX_LOSS",
            "smooth_l1",
            "loss of the regressed boxes: of their deltas, or 1 - GIoU of the boxes",
            one_of("smooth_l1", "l1", "giou"),
        ),
        Key(prefix + "BOX_LOSS_WEIGHT", 1.0, "its factor", _count),
        Key(
            prefix + "SMOOTH_L1_BETA",
            beta,
            "smooth_l1: width of its quadratic part; 0: L1",
            _count,
        ),
    ]


def _fbnet_head(head: str, extractor: str, last_scale: float) -> list[Key]:
    prefix = f"MODEL.FBNET.{head}_HEAD_"
    return [
        Key(
            prefix + "BLOCKS",
            [],
            f"numbers of the blocks that {extractor} has; empty: all",
            each(_count, empty=True),
        ),
        Key(prefix + "STRIDE", 0, "of the first; 0: the architecture's", one_of(0, 1, 2)),
        Key(
            prefix + "LAST_SCALE",
            last_scale,
            "width of a 1x1 after them, relative to the architecture's; negative: to the blocks'; "
            "0: none",
        ),
    ]


KEYS: list[Key] = [
    Key("IMPORTS", (), "modules or .py files imported first: your own registered parts", strings),
    Key("OUTPUT_DIR", "output", "where a run leaves its files"),
    Key("SEED", 0, "seed of sampling, augmentation and initialisation", _count),
    Key(
        "DTYPE",
        "float32",
        "arithmetic of the forward pass (torch.amp); auto: bfloat16 where the processor (AMX or "
        "AVX512-BF16) or the GPU is fast at it, else float32",
        one_of("auto", "float32", "float16", "bfloat16"),
    ),
    # ---- model
    Key("MODEL.META_ARCHITECTURE", "GeneralizedRCNN", "the detector"),
    Key("MODEL.DEVICE", "auto", "'cpu', 'cuda', 'cuda:1'; auto: CUDA when there is one"),
    Key(
        "MODEL.WEIGHT",
        "",
        "checkpoint to start from: a path, or catalog://, detectron2:// or https:// for a file "
        "under WEIGHT_ROOT; empty: from scratch",
    ),
    Key(
        "MODEL.WEIGHT_ROOT",
        "weights",
        "folder of downloaded weights; may hold ${VARIABLE:-default}",
    ),
    Key(
        "MODEL.REINIT_HEADS",
        False,
        "re-initialise the class-dependent layers of MODEL.WEIGHT "
        "when its classes differ, instead of refusing it",
    ),
    Key("MODEL.MASK_ON", False, "predict instance masks"),
    Key("MODEL.KEYPOINT_ON", False, "predict keypoints"),
    Key("MODEL.CLS_AGNOSTIC_BBOX_REG", False, "one box regression for all classes"),
    Key(
        "MODEL.INCLUSIVE_BOXES",
        False,
        "x2 and y2 count the last pixel inside where regions are pooled, clipped, scaled and "
        "pasted (maskrcnn-benchmark)",
    ),
    Key(
        "MODEL.BACKBONE.CONV_BODY",
        "R-50-C4",
        "R-{18,34,50,101,152}-{C4,C5,FPN,FPN-RETINANET}, timm/<model> with the same endings, FBNet "
        "or a registered name",
    ),
    Key(
        "MODEL.BACKBONE.FREEZE_CONV_BODY_AT",
        2,
        "leading stages (stem first) of a ResNet that are not trained",
        in_range(0, 5),
    ),
    Key(
        "MODEL.BACKBONE.FREEZE_NORM",
        True,
        "batch norm in frozen stages of a ResNet keeps its statistics; False: it goes on with "
        "those of the batch (torchvision)",
    ),
    Key("MODEL.RESNETS.NORM", "FrozenBN", "normalisation of the body", one_of(*NORMS)),
    Key(
        "MODEL.RESNETS.BN_EPSILON",
        1e-5,
        "added to the variance of batch norm (0 in maskrcnn-benchmark)",
        _count,
    ),
    Key("MODEL.RESNETS.TRANS_FUNC", None, "restates RESNETS.NORM for the blocks", None, str),
    Key("MODEL.RESNETS.STEM_FUNC", None, "restates RESNETS.NORM for the stem", None, str),
    Key("MODEL.RESNETS.NUM_GROUPS", 1, "groups of the 3x3 (ResNeXt)", _positive),
    Key("MODEL.RESNETS.WIDTH_PER_GROUP", 64, "channels per group in the first stage", _positive),
    Key(
        "MODEL.RESNETS.STRIDE_IN_1X1",
        True,
        "stride of a bottleneck in its 1x1 (original weights) or its 3x3 (torchvision)",
    ),
    Key(
        "MODEL.RESNETS.RES5_DILATION",
        1,
        "dilation of the last stage, which then keeps its stride",
        one_of(1, 2),
    ),
    Key("MODEL.RESNETS.STEM_OUT_CHANNELS", 64, "channels of the stem", _positive),
    Key(
        "MODEL.RESNETS.RES2_OUT_CHANNELS",
        None,
        "channels of the first stage; 256 for bottlenecks, 64 for basic blocks",
        _positive,
        int,
    ),
    Key(
        "MODEL.RESNETS.BACKBONE_OUT_CHANNELS",
        None,
        "channels of the backbone's output: the FPN width (256), or restating the C4 width",
        _positive,
        int,
    ),
    Key(
        "MODEL.RESNETS.STAGE_WITH_DCN",
        (False,) * 4,
        "deformable 3x3s in the bottlenecks of res2, res3, res4 and res5",
        each(one_of(True, False), 4),
    ),
    Key(
        "MODEL.RESNETS.WITH_MODULATED_DCN",
        False,
        "deformable convolution, version 2: its taps are weighted as well",
    ),
    Key(
        "MODEL.RESNETS.DEFORMABLE_GROUPS",
        1,
        "parts of its channels that have offsets of their own",
        _positive,
    ),
    Key("MODEL.FBNET.ARCH", "default", "architecture of a CONV_BODY FBNet and of its heads"),
    Key("MODEL.FBNET.ARCH_DEF", "", "JSON of an architecture of your own, instead of ARCH"),
    Key("MODEL.FBNET.BN_TYPE", "bn", "norm: batch, group or frozen", one_of("bn", "gn", "af")),
    Key("MODEL.FBNET.SCALE_FACTOR", 1.0, "of all widths", _positive),
    Key("MODEL.FBNET.WIDTH_DIVISOR", 1, "widths are rounded to a multiple of it", _positive),
    Key("MODEL.FBNET.DW_CONV_SKIP_BN", True, "no norm after depthwise convolutions"),
    Key("MODEL.FBNET.DW_CONV_SKIP_RELU", True, "no ReLU after them"),
    Key("MODEL.FBNET.RPN_HEAD_BLOCKS", 0, "last blocks that FBNet.rpn_head has; 0: all", _count),
    Key(
        "MODEL.FBNET.RPN_BN_TYPE",
        "",
        "norm in FBNet.rpn_head; empty: BN_TYPE",
        one_of("", "bn", "gn", "af"),
    ),
    *_fbnet_head("DET", "FBNet.roi_head", 1.0),
    *_fbnet_head("MASK", "FBNet.roi_head_mask", 0.0),
    *_fbnet_head("KPTS", "FBNet.roi_head_keypoints", 0.0),
    Key(
        "MODEL.TIMM.FROZEN_NORM",
        True,
        "batch norm of a body of timm keeps its statistics, scale and shift",
    ),
    Key("MODEL.FPN.USE_GN", False, "group norm in the FPN: NORM GN"),
    Key("MODEL.FPN.NORM", "", "norm in the FPN; empty: none", one_of("", *NORMS)),
    Key("MODEL.FPN.USE_RELU", False, "ReLU after the FPN's convolutions"),
    Key("MODEL.GROUP_NORM.DIM_PER_GP", -1, "channels per group; -1: by NUM_GROUPS"),
    Key("MODEL.GROUP_NORM.NUM_GROUPS", 32, "groups; -1: by DIM_PER_GP"),
    Key("MODEL.GROUP_NORM.EPSILON", 1e-5, "added to the variance", _positive),
    # ---- region proposals
    Key("MODEL.RPN.RPN_HEAD", "SingleConvRPNHead", "registered RPN head"),
    Key("MODEL.RPN.NUM_CONVS", 1, "3x3s before its predictions", _positive),
    Key("MODEL.RPN.USE_FPN", None, "restates BACKBONE.CONV_BODY", None, bool),
    Key(
        "MODEL.RPN.ANCHOR_SIZES",
        (32, 64, 128, 256, 512),
        "side of the anchors in pixels: all on a C4 map; one (or a tuple) for each FPN level",
        anchor_sizes,
    ),
    Key(
        "MODEL.RPN.ANCHOR_STRIDE",
        None,
        "strides of the RPN's levels; restates BACKBONE.CONV_BODY",
        each(_positive),
        tuple,
    ),
    Key(
        "MODEL.RPN.ANCHOR_OFFSET",
        0.5,
        "anchor centre in its cell, as a fraction of the stride",
        _unit,
    ),
    Key(
        "MODEL.RPN.ANCHOR_ROUNDING",
        "none",
        "rounding of anchors: none, their corners (torchvision) or one as large as a cell, which "
        "is then scaled (maskrcnn-benchmark)",
        one_of("none", "corners", "cell"),
    ),
    Key(
        "MODEL.RPN.ANCHOR_SPACING",
        "stride",
        "pixels between anchors: the stride, or what fits into the padded image as often as the "
        "map has cells (torchvision)",
        one_of("stride", "fit"),
    ),
    Key("MODEL.RPN.ASPECT_RATIOS", (0.5, 1.0, 2.0), "height / width", each(_positive)),
    Key(
        "MODEL.RPN.STRADDLE_THRESH",
        0,
        "pixels an anchor may cross the image border in training; -1: any",
    ),
    Key("MODEL.RPN.FG_IOU_THRESHOLD", 0.7, "IoU from which an anchor is foreground", _unit),
    Key("MODEL.RPN.BG_IOU_THRESHOLD", 0.3, "IoU below which an anchor is background", _unit),
    Key("MODEL.RPN.BATCH_SIZE_PER_IMAGE", 256, "anchors sampled per image", _positive),
    Key("MODEL.RPN.POSITIVE_FRACTION", 0.5, "most foreground among them", _unit),
    *_box_loss("RPN", beta=1.0 / 9),
    Key(
        "MODEL.RPN.LOSS_NORMALIZER",
        "sampled",
        "losses are averaged over the anchors sampled, or over BATCH_SIZE_PER_IMAGE for each "
        "image (detectron2)",
        one_of("sampled", "capacity"),
    ),
    Key("MODEL.RPN.PRE_NMS_TOP_N_TRAIN", 12000, "per level, before NMS, training", _positive),
    Key("MODEL.RPN.PRE_NMS_TOP_N_TEST", 6000, "per level, before NMS, test", _positive),
    Key("MODEL.RPN.POST_NMS_TOP_N_TRAIN", 2000, "per level, after NMS, training", _positive),
    Key("MODEL.RPN.POST_NMS_TOP_N_TEST", 1000, "per level, after NMS, test", _positive),
    Key("MODEL.RPN.NMS_THRESH", 0.7, "IoU above which a proposal is suppressed", _unit),
    Key("MODEL.RPN.MIN_SIZE", 0.0, "proposals with a smaller side are dropped", _count),
    Key("MODEL.RPN.FPN_POST_NMS_TOP_N_TRAIN", 2000, "over all levels, training", _positive),
    Key("MODEL.RPN.FPN_POST_NMS_TOP_N_TEST", 2000, "over all levels, test", _positive),
    Key(
        "MODEL.RPN.FPN_POST_NMS_PER_BATCH",
        True,
        "in training, count FPN_POST_NMS_TOP_N_TRAIN over the batch instead of per image",
    ),
    # ---- RetinaNet
    Key(
        "MODEL.RPN_ONLY",
        False,
        "region proposals alone, without heads; beside RETINANET_ON it says nothing more",
    ),
    Key("MODEL.RETINANET_ON", False, "a one-stage RetinaNet instead of an RPN and heads"),
    Key("MODEL.RETINANET.NUM_CLASSES", 81, "categories + 1 (background)", in_range(2)),
    Key(
        "MODEL.RETINANET.SCORES_BACKGROUND",
        False,
        "score the background as well, as label 0 (torchvision)",
    ),
    Key(
        "MODEL.RETINANET.ANCHOR_SIZES",
        (32, 64, 128, 256, 512),
        "side of the smallest anchors in pixels: one (or a tuple) for each level",
        anchor_sizes,
    ),
    Key("MODEL.RETINANET.OCTAVE", 2.0, "factor from each size to the next in line", above(1)),
    Key("MODEL.RETINANET.SCALES_PER_OCTAVE", 3, "sizes on the way there", _positive),
    Key("MODEL.RETINANET.ASPECT_RATIOS", (0.5, 1.0, 2.0), "height / width", each(_positive)),
    Key(
        "MODEL.RETINANET.ANCHOR_STRIDES",
        None,
        "strides of the levels; restates BACKBONE.CONV_BODY",
        each(_positive),
        tuple,
    ),
    Key(
        "MODEL.RETINANET.USE_C5",
        True,
        "in a CONV_BODY R-...-FPN-RETINANET, P6 is made from C5; False: from P5",
    ),
    Key("MODEL.RETINANET.NUM_CONVS", 4, "3x3s of each tower", _count),
    Key("MODEL.RETINANET.NORM", "", "norm in the towers; empty: none", one_of("", *NORMS)),
    Key(
        "MODEL.RETINANET.PRIOR_PROB",
        0.01,
        "score that every anchor starts with",
        in_range(1e-6, 0.5),
    ),
    Key("MODEL.RETINANET.FG_IOU_THRESHOLD", 0.5, "IoU from which an anchor is foreground", _unit),
    Key("MODEL.RETINANET.BG_IOU_THRESHOLD", 0.4, "IoU below which an anchor is background", _unit),
    Key("MODEL.RETINANET.LOSS_ALPHA", 0.25, "focal loss: weight of the foreground", _unit),
    Key("MODEL.RETINANET.LOSS_GAMMA", 2.0, "focal loss: how little easy anchors count", _count),
    Key(
        "MODEL.RETINANET.LOSS_NORMALIZER",
        "batch",
        "losses are divided by the foreground anchors of the batch, of each image (torchvision), "
        "or by their moving average (detectron2)",
        one_of("batch", "image", "moving"),
    ),
    Key(
        "MODEL.RETINANET.BOX_LOSS",
        "smooth_l1",
        "loss of the regressed boxes: of their deltas, or 1 - GIoU of the boxes",
        one_of("smooth_l1", "l1", "giou"),
    ),
    Key("MODEL.RETINANET.BBOX_REG_WEIGHT", 4.0, "the box loss is divided by it", _positive),
    Key(
        "MODEL.RETINANET.BBOX_REG_BETA",
        0.11,
        "smooth_l1: width of its quadratic part; 0: L1",
        _count,
    ),
    Key(
        "MODEL.RETINANET.BBOX_REG_WEIGHTS",
        (10.0, 10.0, 5.0, 5.0),
        "scale of dx, dy, dw, dh",
        each(_positive, 4),
    ),
    Key("MODEL.RETINANET.INFERENCE_TH", 0.05, "detections need a higher score", _unit),
    Key("MODEL.RETINANET.PRE_NMS_TOP_N", 1000, "scores per level, before NMS", _positive),
    Key("MODEL.RETINANET.NMS_TH", 0.4, "IoU above which a detection is suppressed", _unit),
    Key(
        "MODEL.RETINANET.CLIP",
        "before-nms",
        "when boxes are clipped to the image (detectron2: after-nms)",
        one_of("before-nms", "after-nms"),
    ),
    Key(
        "MODEL.RETINANET.MIN_SIZE",
        0.0,
        "detections with a smaller side are then dropped; negative: even empty ones stay "
        "(torchvision)",
    ),
    # ---- heads
    Key("MODEL.ROI_HEADS.USE_FPN", None, "restates BACKBONE.CONV_BODY", None, bool),
    Key("MODEL.ROI_HEADS.FG_IOU_THRESHOLD", 0.5, "IoU from which a proposal is foreground", _unit),
    Key("MODEL.ROI_HEADS.BG_IOU_THRESHOLD", 0.5, "IoU below which it is background", _unit),
    Key(
        "MODEL.ROI_HEADS.BBOX_REG_WEIGHTS",
        (10.0, 10.0, 5.0, 5.0),
        "scale of dx, dy, dw, dh",
        each(_positive, 4),
    ),
    Key(
        "MODEL.ROI_HEADS.CASCADE_IOUS",
        (),
        "a cascade of box heads: the foreground IoU of each stage; empty: one head",
        each(_unit, empty=True),
    ),
    Key(
        "MODEL.ROI_HEADS.CASCADE_BBOX_REG_WEIGHTS",
        ((10.0, 10.0, 5.0, 5.0), (20.0, 20.0, 10.0, 10.0), (30.0, 30.0, 15.0, 15.0)),
        "BBOX_REG_WEIGHTS of each stage of a cascade",
        each(each(_positive, 4)),
    ),
    Key("MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", 512, "proposals sampled per image", _positive),
    Key("MODEL.ROI_HEADS.POSITIVE_FRACTION", 0.25, "most foreground among them", _unit),
    Key("MODEL.ROI_HEADS.SCORE_THRESH", 0.05, "detections need a higher score", _unit),
    Key("MODEL.ROI_HEADS.NMS", 0.5, "IoU above which a detection is suppressed", _unit),
    Key("MODEL.ROI_HEADS.MIN_SIZE", 0.0, "detections with a smaller side are dropped", _count),
    Key("MODEL.ROI_HEADS.DETECTIONS_PER_IMG", 100, "detections kept per image", _positive),
    Key(
        "MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR",
        "ResNet50Conv5ROIFeatureExtractor",
        "registered extractor",
    ),
    Key("MODEL.ROI_BOX_HEAD.PREDICTOR", "FastRCNNPredictor", "registered predictor"),
    *_head_pooler("ROI_BOX_HEAD"),
    Key("MODEL.ROI_BOX_HEAD.NUM_CLASSES", 81, "categories + 1 (background)", in_range(2)),
    Key("MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM", 1024, "width of the 2-MLP head", _positive),
    Key("MODEL.ROI_BOX_HEAD.NUM_STACKED_CONVS", 4, "convolutions of the conv head", _count),
    Key("MODEL.ROI_BOX_HEAD.CONV_HEAD_DIM", 256, "their channels", _positive),
    Key("MODEL.ROI_BOX_HEAD.DILATION", 1, "their dilation", _positive),
    Key("MODEL.ROI_BOX_HEAD.USE_GN", False, "group norm in the box head: NORM GN"),
    Key("MODEL.ROI_BOX_HEAD.NORM", "", "norm in the box head; empty: none", one_of("", *NORMS)),
    *_box_loss("ROI_BOX_HEAD", beta=1.0),
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
        each(_positive),
    ),
    Key("MODEL.ROI_MASK_HEAD.DILATION", 1, "dilation of its 3x3s", _positive),
    Key("MODEL.ROI_MASK_HEAD.USE_GN", False, "group norm in the mask head: NORM GN"),
    Key("MODEL.ROI_MASK_HEAD.NORM", "", "norm in the mask head; empty: none", one_of("", *NORMS)),
    Key(
        "MODEL.ROI_MASK_HEAD.RESOLUTION",
        14,
        "side of the predicted masks; must be what the head gives",
        _positive,
    ),
    Key("MODEL.ROI_MASK_HEAD.SHARE_BOX_FEATURE_EXTRACTOR", True, "reuse the box head's features"),
    Key(
        "MODEL.ROI_MASK_HEAD.POSTPROCESS_MASKS_THRESHOLD",
        0.5,
        "probability from which a pixel belongs to a mask",
        _unit,
    ),
    Key(
        "MODEL.ROI_MASK_HEAD.TARGETS",
        "binary",
        "what masks are trained on: crops of 0 and 1, or averages as they are (torchvision)",
        one_of("binary", "soft"),
    ),
    Key(
        "MODEL.ROI_MASK_HEAD.PASTE",
        "continuous",
        "how masks are pasted: into the box itself, or into one truncated to whole pixels "
        "(torchvision, maskrcnn-benchmark)",
        one_of("continuous", "whole-pixels"),
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
        each(_positive),
    ),
    Key("MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES", 17, "keypoints of an instance", _positive),
    Key(
        "MODEL.ROI_KEYPOINT_HEAD.RESOLUTION",
        14,
        "side of the heat maps; must be what the head gives",
        _positive,
    ),
    Key(
        "MODEL.ROI_KEYPOINT_HEAD.SHARE_BOX_FEATURE_EXTRACTOR",
        True,
        "reuse the box head's features",
    ),
    # ---- input
    Key(
        "INPUT.MIN_SIZE_TRAIN",
        (800,),
        "short side in pixels, one drawn for each image",
        each(_positive),
    ),
    Key("INPUT.MAX_SIZE_TRAIN", 1333, "longest side in training", _positive),
    Key("INPUT.MIN_SIZE_TEST", 800, "short side in evaluation", _positive),
    Key("INPUT.MAX_SIZE_TEST", 1333, "longest side in evaluation", _positive),
    Key(
        "INPUT.RESIZE",
        "round",
        "bilinear resizing: antialiased, as Pillow does, to the nearest size (detectron2: round),"
        " or the size below (maskrcnn-benchmark: floor), or neither antialiased nor rounded to 8 "
        "bits (torchvision: interpolate)",
        one_of("round", "floor", "interpolate"),
    ),
    Key(
        "INPUT.PIXEL_MEAN",
        [102.9801, 115.9465, 122.7717],
        "subtracted, in the order and scale that TO_BGR255 sets",
        each(in_range(0, 255), 3),
    ),
    Key("INPUT.PIXEL_STD", [1.0, 1.0, 1.0], "divided by", each(_positive, 3)),
    Key("INPUT.TO_BGR255", True, "feed BGR 0..255 (original weights) or RGB 0..1"),
    Key("INPUT.BRIGHTNESS", 0.0, "colour jitter: largest relative change", _count),
    Key("INPUT.CONTRAST", 0.0, "colour jitter", _count),
    Key("INPUT.SATURATION", 0.0, "colour jitter", _count),
    Key("INPUT.HUE", 0.0, "colour jitter", in_range(0, 0.5)),
    Key("INPUT.HORIZONTAL_FLIP_PROB_TRAIN", 0.5, "probability of a left-right flip", _unit),
    Key("INPUT.VERTICAL_FLIP_PROB_TRAIN", 0.0, "probability of an up-down flip", _unit),
    # ---- data
    Key("DATASETS.TRAIN", (), "training sets, by name in CATALOG or built in", strings),
    Key("DATASETS.TEST", (), "evaluation sets, by name in CATALOG or built in", strings),
    Key(
        "DATASETS.ROOT",
        "datasets",
        "folder that the entries' paths are relative to; may hold ${VARIABLE:-default}",
    ),
    Key("DATASETS.CATALOG", [], "data sets: {name, annotations, images}", catalog),
    Key(
        "DATASETS.ON_BAD_ANNOTATION",
        "error",
        "bad annotations: stop, or log, count and skip",
        one_of("error", "skip"),
    ),
    Key("DATALOADER.NUM_WORKERS", 4, "loader processes; 0: load in the main process", _count),
    Key("DATALOADER.SIZE_DIVISIBILITY", 0, "batches are padded to a multiple of it", _count),
    Key("DATALOADER.ASPECT_RATIO_GROUPING", True, "batches of only wide or only tall images"),
    # ---- solver
    Key(
        "SOLVER.OPTIMIZER",
        "SGD",
        "FusedSGD needs NVIDIA's apex",
        one_of("SGD", "FusedSGD", "AdamW"),
    ),
    Key("SOLVER.MAX_ITER", 40000, "training steps", _positive),
    Key("SOLVER.IMS_PER_BATCH", 16, "images in a step, over all processes", _positive),
    Key("SOLVER.BASE_LR", 0.001, "learning rate after warm-up", _positive),
    Key("SOLVER.BIAS_LR_FACTOR", 2.0, "learning rate of biases, relative", _count),
    Key("SOLVER.MOMENTUM", 0.9, "SGD momentum; AdamW's first beta", in_range(0, 1, open_end=True)),
    Key("SOLVER.WEIGHT_DECAY", 0.0005, "of weights", _count),
    Key("SOLVER.WEIGHT_DECAY_BIAS", 0.0, "of biases", _count),
    Key(
        "SOLVER.WEIGHT_DECAY_NORM",
        None,
        "of the scales of normalisation layers; left out: WEIGHT_DECAY",
        _count,
        float,
    ),
    Key("SOLVER.LR_SCHEDULE", "multistep", "after warm-up", one_of("multistep", "cosine")),
    Key(
        "SOLVER.STEPS",
        (30000,),
        "iterations at which the rate falls by GAMMA",
        each(_count, empty=True),
    ),
    Key("SOLVER.GAMMA", 0.1, "factor of each fall", _positive),
    Key("SOLVER.WARMUP_METHOD", "linear", "course of the warm-up", one_of("linear", "constant")),
    Key("SOLVER.WARMUP_FACTOR", 1.0 / 3, "rate at its start, relative", _unit),
    Key("SOLVER.WARMUP_ITERS", 500, "its length", _count),
    Key(
        "SOLVER.CLIP_GRAD_NORM",
        0.0,
        "largest norm of all gradients together; 0: no clipping",
        _count,
    ),
    Key("SOLVER.LOG_PERIOD", 20, "iterations between lines of metrics", _positive),
    Key(
        "SOLVER.CHECKPOINT_PERIOD", 2500, "iterations between checkpoints; 0: only the last", _count
    ),
    Key("SOLVER.TEST_PERIOD", 0, "iterations between evaluations; 0: only at the end", _count),
    # ---- evaluation
    Key("TEST.IMS_PER_BATCH", 8, "images in an evaluation batch, over all processes", _positive),
    Key("TEST.DETECTIONS_PER_IMG", None, "restates ROI_HEADS.DETECTIONS_PER_IMG", _positive, int),
    Key(
        "TEST.COCO_ENGINE",
        "pycocotools",
        "who computes COCO's metrics: the numbers are the same, faster-coco-eval is a package to "
        "install",
        one_of("pycocotools", "faster-coco-eval"),
    ),
    Key(
        "TEST.EXPECTED_RESULTS",
        [],
        "rows such as [bbox, AP, [0.377, 0.002]], a mean and its standard deviation: after an "
        "evaluation PASS or FAIL is logged for each",
        expected_results,
    ),
    Key("TEST.EXPECTED_RESULTS_SIGMA_TOL", 4.0, "standard deviations that are still PASS", _count),
    Key(
        "TEST.BBOX_AUG.ENABLED",
        False,
        "test-time augmentation: join what is found in several views of a picture (boxes, masks "
        "and keypoints); that at INPUT.MIN_SIZE_TEST is always one of them",
    ),
    Key("TEST.BBOX_AUG.H_FLIP", False, "also look at it mirrored"),
    Key(
        "TEST.BBOX_AUG.SCALES",
        (),
        "short sides in pixels of further views",
        each(_positive, empty=True),
    ),
    Key("TEST.BBOX_AUG.MAX_SIZE", 4000, "longest side of those views", _positive),
    Key("TEST.BBOX_AUG.SCALE_H_FLIP", False, "also look at those mirrored"),
    Key(
        "TEST.KEYPOINT_OKS_SIGMAS",
        (),
        "how far each keypoint may be off in evaluation, as a part of the object's size; empty: "
        "COCO's for 17 keypoints, else the mean of COCO's",
        each(_positive, empty=True),
    ),
    Key(
        "TEST.NMS.METHOD",
        "nms",
        "detections of a category that overlap: nms keeps the best; soft-linear and soft-gaussian "
        "lower the scores of the others; voting keeps the best, moved to the mean of its "
        "neighbours; fusion replaces them all by their mean (weighted boxes fusion)",
        one_of("nms", "soft-linear", "soft-gaussian", "voting", "fusion"),
    ),
    Key("TEST.NMS.SIGMA", 0.5, "soft-gaussian: scores fall by exp(-IoU^2 / SIGMA)", _positive),
    Key("TEST.NMS.VOTE_THRESH", 0.8, "voting: least IoU of a neighbour", _unit),
    Key(
        "TEST.NMS.MIN_SCORE",
        0.001,
        "soft-*, fusion: detections need a higher score in the end",
        _unit,
    ),
]

# Keys of maskrcnn-benchmark that are read and left out, and why they have no effect here.
NO_EFFECT = {
    "AMP_VERBOSE": "mixed precision is torch.amp's, which has no such switch",
    "MODEL.ROI_MASK_HEAD.POSTPROCESS_MASKS": "masks are always pasted into the image",
    "MODEL.ROI_MASK_HEAD.MLP_HEAD_DIM": "no mask head has a fully connected layer",
    "MODEL.ROI_KEYPOINT_HEAD.MLP_HEAD_DIM": "no keypoint head has a fully connected layer",
    "MODEL.RETINANET.STRADDLE_THRESH": "RetinaNet is trained on every anchor, there as well",
    "PATHS_CATALOG": "data sets are built in or in DATASETS.CATALOG",
}
