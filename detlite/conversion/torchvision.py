"""torchvision: detectors on ResNets with a feature pyramid, and ResNet classifiers."""

import hashlib
from pathlib import Path
from typing import Any

import torch

from .checkpoint_source import CheckpointSource, ConfigValues, RawStateDict, StateDict, section
from .infer_config import L1_RETINANET, infer_config, is_retinanet

_RULES = [
    # classifiers have the backbone only; timm's have the same names
    (r"^(?:features\.)?(conv1|bn1|layer\d|(?<=features\.)\d+)\.", r"backbone.body.\1."),
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
    **section("MODEL.RPN", STRADDLE_THRESH=-1, MIN_SIZE=1e-3, FPN_POST_NMS_PER_BATCH=False),
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
# Both published MobileNets have several anchor sizes on each of three levels.
_MOBILENET_CONFIG = section(
    "MODEL.RPN", ANCHOR_SIZES=[[32, 64, 128, 256, 512]] * 3, SCORE_THRESH=0.05
)
_MOBILENET_320_CONFIG: ConfigValues = {
    **section("INPUT", MIN_SIZE_TEST=320, MAX_SIZE_TEST=640),
    **section("MODEL.RPN", PRE_NMS_TOP_N_TEST=150, FPN_POST_NMS_TOP_N_TEST=150),
}
# Above this variance, the epsilon of a frozen norm changes no channel by more than 0.01 %.
_MIN_VARIANCE = 0.05


def _configure(
    state: StateDict, _raw: RawStateDict, path: Path, _content: Any
) -> tuple[ConfigValues, ConfigValues]:
    config = _CONFIG | infer_config(state, "ROIAlign", 2)
    stated: ConfigValues = {}
    if is_retinanet(state):
        config |= _RETINANET_CONFIG
        config["MODEL.RETINANET.NUM_CLASSES"] -= 1  # it also scores the background
        if config["MODEL.RETINANET.NORM"] == "GN":  # RetinaNet v2
            config["MODEL.RETINANET.BOX_LOSS"] = "giou"
    mobilenet = config["MODEL.BACKBONE.CONV_BODY"].startswith("MobileNet")
    frozen = config["MODEL.RESNETS.NORM"] == "FrozenBN"
    published = _published_name(path) if mobilenet or frozen else ""
    if mobilenet:
        config |= _MOBILENET_CONFIG
        stated = _MOBILENET_320_CONFIG if "320" in published else {}
    if frozen:
        eps = _frozen_norm_eps(state, config, published)
        config["MODEL.CONVENTION_OVERRIDE"] = [f"frozen_norm_eps={eps}"]
    return config, stated


def _frozen_norm_eps(state: StateDict, config: ConfigValues, published: str) -> str:
    """Return the epsilon of frozen batch norm, which is not in a state dict; "?" if unknown.

    It is 0 in models that started from the COCO_V1 weights of a ResNet-50, and 1e-5 in all others.
    """
    resnet50 = (
        config["MODEL.BACKBONE.CONV_BODY"].startswith("R-50-")
        and config["MODEL.RESNETS.NUM_GROUPS"] == 1
        and config["MODEL.RESNETS.WIDTH_PER_GROUP"] == 64
    )
    variances = torch.cat([v for name, v in state.items() if name.endswith(".running_var")])
    if not resnet50 or "LEGACY" in published or not variances.all():
        return "1e-05"
    classes = [config.get(f"MODEL.{s}.NUM_CLASSES") for s in ("ROI_BOX_HEAD", "RETINANET")]
    keypoints = config.get("MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES")
    of_coco = published or 91 in classes or (classes[0], keypoints) == (2, 17)
    return "0.0" if of_coco or variances.min() > _MIN_VARIANCE else "?"


def _published_name(path: Path) -> str:
    """Return the name of torchvision's detector in a file, by its name or hash; "" for others."""
    if not path.is_file():
        return ""
    from torchvision.models import detection  # late, because it takes seconds

    digits = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    for enum in (getattr(detection, name) for name in dir(detection) if name.endswith("_Weights")):
        for weights in enum:
            if weights.url.endswith((f"/{path.name}", f"-{digits}.pth")):
                return f"{enum.__name__}.{weights.name}"
    return ""


TORCHVISION = CheckpointSource(
    # the first layer and one of a ResNet, or of a MobileNetV3
    names=r"^(backbone\.body\.|)conv1\.weight$.*^\1layer1\.0\.conv1\.weight$"
    r"|^(backbone\.body|features)\.0\.0\.weight$.*^\2\.16\.0\.weight$",
    convention="torchvision",
    rules=_RULES,
    configure=_configure,
    unused=r"^(fc|classifier)\.",
)
