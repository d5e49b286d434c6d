"""torchvision: detectors on ResNets with a feature pyramid, and ResNet classifiers."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from .checkpoint_source import (
    CheckpointSource,
    ConfigValues,
    RawStateDict,
    StateDict,
    rename,
)
from .infer_config import L1_RETINANET, infer_config, is_retinanet


def _recognise(names: Collection[str]) -> bool:
    return any(
        f"{prefix}conv1.weight" in names and f"{prefix}layer1.0.conv1.weight" in names
        for prefix in ("backbone.body.", "")
    )


_RULES = [
    # classifiers have the backbone only; those of timm have the same names
    (r"^(conv1|bn1|layer\d)\.", r"backbone.body.\1."),
    (r"^backbone\.body\.(conv1|bn1)\.", r"backbone.body.stem.\1."),
    *((rf"\.layer{n}\.", f".res{n + 1}.") for n in range(1, 5)),
    (r"\.bn(\d)\.", r".norm\1."),
    # before version 0.13 these layers were not wrapped in blocks
    (r"_blocks\.(\d)\.(weight|bias)$", r"_blocks.\1.0.\2"),
    (r"^rpn\.head\.conv\.(weight|bias)$", r"rpn.head.conv.0.0.\1"),
    *((rf"mask_head\.mask_fcn{n}\.", f"mask_head.{n - 1}.0.") for n in range(1, 9)),
    (r"^backbone\.fpn\.inner_blocks\.", "backbone.neck.lateral."),
    (r"^backbone\.fpn\.layer_blocks\.", "backbone.neck.output."),
    (r"^rpn\.head\.conv\.0\.0\.", "rpn.head.conv."),
    *((rf"^rpn\.head\.conv\.{n}\.0\.", f"rpn.head.more_convs.{n - 1}.") for n in range(1, 4)),
    (r"^roi_heads\.box_head\.(\d)\.([01])\.", r"roi_heads.box.feature_extractor.convs.\1.\2."),
    (r"^roi_heads\.box_head\.\d\.(weight|bias)$", r"roi_heads.box.feature_extractor.fc6.\1"),
    (r"^roi_heads\.(box|mask|keypoint)_predictor\.", r"roi_heads.\1.predictor."),
    (r"^roi_heads\.box_head\.", "roi_heads.box.feature_extractor."),
    (r"^backbone\.fpn\.extra_blocks\.", "backbone.neck.top."),
    # convolutions alternate with ReLUs; in RetinaNet's towers before version 0.15
    *((rf"(_head\.conv|keypoint_head)\.{2 * n}\.(?=weight|bias)", rf"\1.{n}.0.") for n in range(8)),
    (r"^roi_heads\.(mask|keypoint)_head\.", r"roi_heads.\1.feature_extractor.convs."),
    (r"^head\.classification_head\.conv\.", "head.cls_tower."),
    (r"^head\.classification_head\.", "head."),
    (r"^head\.regression_head\.conv\.", "head.bbox_tower."),
    (r"^head\.regression_head\.bbox_reg\.", "head.bbox_pred."),
]  # fmt: skip

# Defaults of its constructors, used for its published models.
_CONFIG: ConfigValues = {
    "MODEL.MEMORY_FORMAT": "contiguous",
    "MODEL.RESNETS.STRIDE_IN_1X1": False,
    "MODEL.RPN.STRADDLE_THRESH": -1,
    "MODEL.RPN.MIN_SIZE": 1e-3,
    "MODEL.RPN.FPN_POST_NMS_PER_BATCH": False,
    "MODEL.RPN.FPN_POST_NMS_TOP_N_TRAIN": 2000,
    "MODEL.RPN.FPN_POST_NMS_TOP_N_TEST": 1000,
    "MODEL.ROI_BOX_HEAD.SMOOTH_L1_BETA": 1.0 / 9,
    "INPUT.TO_BGR255": False,
    "INPUT.PIXEL_MEAN": [0.485, 0.456, 0.406],
    "INPUT.PIXEL_STD": [0.229, 0.224, 0.225],
}
_RETINANET_CONFIG: ConfigValues = L1_RETINANET | {
    # sizes are truncated to integers
    "MODEL.RETINANET.SCALES_PER_OCTAVE": 1,
    "MODEL.RETINANET.ANCHOR_SIZES": [
        [int(size * 2 ** (k / 3)) for k in range(3)] for size in (32, 64, 128, 256, 512)
    ],
    "MODEL.ROI_HEADS.DETECTIONS_PER_IMG": 300,
}


def _configure(state: StateDict, _raw: RawStateDict, _path: Path, _content: Any) -> ConfigValues:
    config = _CONFIG | infer_config(state, "ROIAlign", 2)
    if not is_retinanet(state):
        return config
    config |= _RETINANET_CONFIG
    config["MODEL.RETINANET.NUM_CLASSES"] -= 1  # it also scores the background
    if config["MODEL.RETINANET.NORM"] == "GN":  # RetinaNet v2
        config["MODEL.RETINANET.BOX_LOSS"] = "giou"
    return config


TORCHVISION = CheckpointSource(
    name="torchvision",
    convention="torchvision",
    recognise=_recognise,
    rules=_RULES,
    configure=_configure,
    unused=r"^fc\.",
)


# From detlite's names to torchvision's.
TO_TORCHVISION_RULES = [
    (r"^backbone\.body\.stem\.(conv1|norm1)\.", r"backbone.body.\1."),
    *((rf"\.res{n + 1}\.", f".layer{n}.") for n in range(1, 5)),
    (r"^(backbone\.body\..*)\bnorm(\d)\.", r"\1bn\2."),
    (r"^backbone\.neck\.lateral\.", "backbone.fpn.inner_blocks."),
    (r"^backbone\.neck\.output\.", "backbone.fpn.layer_blocks."),
    (r"^rpn\.head\.conv\.", "rpn.head.conv.0.0."),
    *((rf"^rpn\.head\.more_convs\.{n - 1}\.", f"rpn.head.conv.{n}.0.") for n in range(1, 4)),
    (r"^roi_heads\.(box|mask|keypoint)\.predictor\.", r"roi_heads.\1_predictor."),
    (r"^roi_heads\.(\w+)\.feature_extractor\.(?:convs\.)?", r"roi_heads.\1_head."),
    (r"^backbone\.neck\.top\.", "backbone.fpn.extra_blocks."),
    (r"^head\.cls_tower\.", "head.classification_head.conv."),
    (r"^head\.cls_logits\.", "head.classification_head.cls_logits."),
    (r"^head\.bbox_tower\.", "head.regression_head.conv."),
    (r"^head\.bbox_pred\.", "head.regression_head.bbox_reg."),
    *((rf"\.keypoint_head\.{n}\.0\.", f".keypoint_head.{2 * n}.") for n in range(8)),
]  # fmt: skip


def to_torchvision(state: Mapping[str, Tensor]) -> StateDict:
    """Convert a state dict for torchvision's detectors on ResNet-FPN (strict loading).

    Raises:
        ValueError: torchvision has no such model.
    """
    for names in (
        ["backbone.neck.output.0.0.weight"],
        ["backbone.body.stem.conv1.weight"],
        ["rpn.head.conv.weight", "head.bbox_pred.weight"],
        ["roi_heads.box.feature_extractor.fc6.weight", "head.bbox_pred.weight"],
    ):
        if not any(name in state for name in names):
            raise ValueError(
                "torchvision has R-CNNs with fully connected heads, and RetinaNets, on a ResNet "
                f"with a feature pyramid only; this model has no {' or '.join(names)}"
            )
    for name, value in state.items():
        # a 1x1 convolution after another layer
        separable = name.endswith(".1.weight") and value.ndim == 4
        if separable or ".offset." in name or name.startswith("roi_heads.mask.more."):
            raise ValueError(
                "torchvision has neither separable nor deformable convolutions, nor several mask "
                f"heads; this model has {name}"
            )
    renamed = {rename(name, TO_TORCHVISION_RULES): value for name, value in state.items()}
    convs = {name.split(".")[2] for name in renamed if re.match(r"roi_heads\.box_head\.\d", name)}
    if convs:  # a sequence: convolutions, flatten, fully connected layer
        fc = f"roi_heads.box_head.{len(convs) + 1}."
        renamed = {n.replace("roi_heads.box_head.fc6.", fc): v for n, v in renamed.items()}
    return renamed
