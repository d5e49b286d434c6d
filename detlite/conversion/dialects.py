"""How each framework counts where its weights do not tell.

These are the defaults that its published models were trained and measured with.
"""

from __future__ import annotations

from typing import Any

from ..config.maskrcnn_benchmark import COUNTING

Settings = dict[str, Any]  # config keys and values

_COMMON: Settings = {
    "MODEL.RPN.STRADDLE_THRESH": -1,
    "MODEL.RPN.FPN_POST_NMS_PER_BATCH": False,
    "MODEL.RPN.FPN_POST_NMS_TOP_N_TRAIN": 1000,
    "MODEL.RPN.FPN_POST_NMS_TOP_N_TEST": 1000,
}

DIALECTS: dict[str, Settings] = {
    "torchvision": {
        **_COMMON,
        "MODEL.MEMORY_FORMAT": "contiguous",
        "MODEL.RESNETS.BN_EPSILON": 0.0,  # of the frozen norm in published detectors
        "MODEL.RESNETS.STRIDE_IN_1X1": False,
        "MODEL.RPN.ANCHOR_OFFSET": 0.0,
        "MODEL.RPN.ANCHOR_ROUNDING": "corners",
        "MODEL.RPN.ANCHOR_SPACING": "fit",
        "MODEL.RPN.MIN_SIZE": 1e-3,
        "MODEL.RPN.FPN_POST_NMS_TOP_N_TRAIN": 2000,
        "MODEL.ROI_HEADS.MIN_SIZE": 1e-2,
        "MODEL.ROI_BOX_HEAD.SMOOTH_L1_BETA": 1.0 / 9,
        "MODEL.ROI_MASK_HEAD.TARGETS": "soft",
        "MODEL.ROI_MASK_HEAD.PASTE": "whole-pixels",
        "MODEL.ROI_KEYPOINT_HEAD.PIXEL_CENTRE": 0.0,
        "INPUT.RESIZE": "interpolate",
        "INPUT.TO_BGR255": False,
        "INPUT.PIXEL_MEAN": [0.485, 0.456, 0.406],
        "INPUT.PIXEL_STD": [0.229, 0.224, 0.225],
    },
    "detectron2": {
        **_COMMON,
        "MODEL.RPN.ANCHOR_OFFSET": 0.0,
        "MODEL.RPN.SMOOTH_L1_BETA": 0.0,
        "MODEL.RPN.LOSS_NORMALIZER": "capacity",
        "MODEL.ROI_BOX_HEAD.SMOOTH_L1_BETA": 0.0,
        "INPUT.PIXEL_MEAN": [103.53, 116.28, 123.675],
    },
    "maskrcnn-benchmark": {
        **COUNTING,
        "MODEL.RPN.FPN_POST_NMS_TOP_N_TEST": 1000,
    },
}
DIALECTS["caffe2"] = DIALECTS["maskrcnn-benchmark"]

# What more there is to a RetinaNet.
RETINANET_DIALECTS: dict[str, Settings] = {
    "torchvision": {
        "MODEL.RETINANET.SCORES_BACKGROUND": True,
        # the sizes of an octave, cut to whole pixels
        "MODEL.RETINANET.SCALES_PER_OCTAVE": 1,
        "MODEL.RETINANET.ANCHOR_SIZES": [
            [int(size * 2 ** (k / 3)) for k in range(3)] for size in (32, 64, 128, 256, 512)
        ],
        "MODEL.RETINANET.LOSS_NORMALIZER": "image",
        "MODEL.RETINANET.BOX_LOSS": "l1",
        "MODEL.RETINANET.BBOX_REG_WEIGHT": 1.0,
        "MODEL.RETINANET.BBOX_REG_WEIGHTS": [1.0] * 4,
        "MODEL.RETINANET.NMS_TH": 0.5,
        "MODEL.RETINANET.MIN_SIZE": -1.0,
        "MODEL.ROI_HEADS.DETECTIONS_PER_IMG": 300,
    },
    "detectron2": {
        "MODEL.RETINANET.LOSS_NORMALIZER": "moving",
        "MODEL.RETINANET.BBOX_REG_WEIGHT": 1.0,
        "MODEL.RETINANET.BBOX_REG_WEIGHTS": [1.0] * 4,
        "MODEL.RETINANET.BOX_LOSS": "l1",
        "MODEL.RETINANET.NMS_TH": 0.5,
        "MODEL.RETINANET.CLIP": "after-nms",
    },
    "maskrcnn-benchmark": {},
}

POOLERS = {  # type, and samples per bin side of a pyramid's heads
    "torchvision": ("ROIAlign", 2),
    "detectron2": ("ROIAlignV2", 0),
    "maskrcnn-benchmark": ("ROIAlign", 2),
    "caffe2": ("ROIAlign", 2),
}
