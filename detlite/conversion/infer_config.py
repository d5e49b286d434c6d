"""Infer the config of an R-CNN, RPN or RetinaNet from the shapes of its weights."""

import math
from collections.abc import Callable

from detlite.modeling.backbone.resnet import DEPTHS

from .checkpoint_source import ConfigValues, StateDict, section
from .regnet import is_regnet, regnet_config

# Differences of the RetinaNets of torchvision and detectron2 from maskrcnn-benchmark's.
L1_RETINANET = section(
    "MODEL.RETINANET", BOX_LOSS="l1", BBOX_REG_WEIGHT=1.0, BBOX_REG_WEIGHTS=[1.0] * 4, NMS_TH=0.5
)
_FPN = "backbone.neck.output.0.0.weight"


def infer_config(
    state: StateDict,
    pooler: str,
    sampling: int,
    infer_backbone: Callable[[StateDict], ConfigValues] | None = None,
) -> ConfigValues:
    """Infer the config of a detector.

    Args:
        state: the renamed state dict.
        pooler: POOLER_TYPE.
        sampling: POOLER_SAMPLING_RATIO of heads on a pyramid, and of convolutional heads.
        infer_backbone: infers the config of the backbone; None: ResNets and RegNets.

    Raises:
        ValueError: not such a detector, or an unknown backbone.
    """
    if any("ctrness" in name or "centerness" in name for name in state):
        raise ValueError("it is an FCOS, which detlite does not have")
    try:
        config = (infer_backbone or _backbone)(state)
        if is_retinanet(state):
            config |= _retinanet(state)
        else:
            heads = any(name.startswith("roi_heads.") for name in state)
            proposes = not heads or any(name.startswith("rpn.") for name in state)
            config |= _rpn(state, heads) if proposes else {"MODEL.LOAD_PROPOSALS": True}
            if heads:
                config |= _heads(state, pooler, sampling)
    except KeyError as missing:
        name = missing.args[0]
        raise ValueError(f"is no known R-CNN, RPN or RetinaNet: no {name}") from missing
    if config.get("MODEL.RESNETS.NORM") == "GN" or config.get("MODEL.RESNETS.NUM_GROUPS", 1) > 1:
        # No model with group norm or ResNeXt was published with the stride in the 1x1.
        config["MODEL.RESNETS.STRIDE_IN_1X1"] = False
    return config


def is_retinanet(state: StateDict) -> bool:
    return any(name.startswith("head.") for name in state)


def _backbone(state: StateDict) -> ConfigValues:
    if is_retinanet(state):
        ending = "FPN-RETINANET"
    elif _FPN in state:
        ending = "FPN"
    else:
        ending = "C5" if "backbone.body.res5.0.conv2.weight" in state else "C4"
    if "backbone.body.16.0.weight" in state:  # of torchvision
        config: ConfigValues = {
            "MODEL.BACKBONE.CONV_BODY": "MobileNetV3-Large-FPN",
            "MODEL.RESNETS.NORM": _norm(state, "backbone.body.16.1"),
        }
    else:
        config = (regnet_config if is_regnet(state) else _resnet)(state, ending)
    if _FPN in state:
        config["MODEL.RESNETS.BACKBONE_OUT_CHANNELS"] = len(state[_FPN])
        config["MODEL.FPN.NORM"] = _norm(state, "backbone.neck.output.0.1")
        config["DATALOADER.SIZE_DIVISIBILITY"] = 32
    return config


def _resnet(state: StateDict, ending: str) -> ConfigValues:
    stem = state["backbone.body.stem.conv1.weight"]
    blocks = tuple(_count_blocks(state, stage) for stage in range(2, 6))
    bottleneck = "backbone.body.res2.0.conv3.weight" in state
    depths = [
        depth
        for depth, counts in DEPTHS.items()
        # an RPN on C4 has no res5
        if bottleneck == (depth >= 50) and blocks in (counts, (*counts[:3], 0))
    ]
    if not depths:
        raise ValueError(
            f"the backbone has {list(blocks)} blocks in its stages, which is no ResNet of "
            f"depth {sorted(DEPTHS)}"
        )
    offsets = [state.get(f"backbone.body.res{n}.0.conv2.offset.weight") for n in range(2, 6)]
    with_dcn = [weight is not None for weight in offsets]
    conv2 = state[f"backbone.body.res2.0.conv2.{'conv.' if with_dcn[0] else ''}weight"]
    last = state[f"backbone.body.res2.0.conv{3 if bottleneck else 2}.weight"]
    config = {"MODEL.BACKBONE.CONV_BODY": f"R-{depths[0]}-{ending}"} | section(
        "MODEL.RESNETS",
        # The norm of the stem may be frozen while the others are trained.
        NORM=_norm(state, "backbone.body.res4.0.norm1"),
        NUM_GROUPS=conv2.shape[0] // conv2.shape[1],
        WIDTH_PER_GROUP=conv2.shape[1] if bottleneck else 64,
        STEM_OUT_CHANNELS=len(stem),
        RES2_OUT_CHANNELS=len(last),
    )
    if any(with_dcn):
        channels = next(len(weight) for weight in offsets if weight is not None)
        values = 27 if channels % 27 == 0 else 18  # 9 kernel positions with 3 values each, or 2
        config |= section(
            "MODEL.RESNETS",
            STAGE_WITH_DCN=with_dcn,
            WITH_MODULATED_DCN=values == 27,
            DEFORMABLE_GROUPS=channels // values,
        )
    return config


def _rpn(state: StateDict, heads: bool) -> ConfigValues:
    fpn = _FPN in state
    more_convs = sum(name.startswith("rpn.head.more_convs.") for name in state) // 2
    config = section(
        "MODEL.RPN",
        NUM_CONVS=1 + more_convs,
        PRE_NMS_TOP_N_TRAIN=2000 if fpn else 12000,
        PRE_NMS_TOP_N_TEST=1000 if fpn else 6000,
    )
    if len(state["rpn.head.cls_logits.weight"]) == 9 and not fpn:
        # as in the Faster R-CNN paper, and in maskrcnn-benchmark for PASCAL VOC
        config |= section("MODEL.RPN", ANCHOR_SIZES=[128, 256, 512], POST_NMS_TOP_N_TEST=300)
    if not heads:
        config["MODEL.META_ARCHITECTURE"] = "ProposalNetwork"
        config["MODEL.ROI_BOX_HEAD.NUM_CLASSES"] = 2
        config["MODEL.RPN.PRE_NMS_TOP_N_TEST"] = 1000 if fpn else 12000
        config["MODEL.RPN.POST_NMS_TOP_N_TEST"] = 2000
        config["MODEL.RPN.FPN_POST_NMS_TOP_N_TEST"] = 2000
    return config


def _heads(state: StateDict, pooler: str, sampling: int) -> ConfigValues:
    cascade = "roi_heads.box.0.predictor.cls_score.weight" in state
    head = "roi_heads.box.0" if cascade else "roi_heads.box"
    num_classes = len(state[f"{head}.predictor.cls_score.weight"])
    regressions = len(state[f"{head}.predictor.bbox_pred.weight"])
    mask = "roi_heads.mask.predictor.mask_fcn_logits.weight" in state
    config: ConfigValues = {
        "MODEL.MASK_ON": mask,
        "MODEL.CLS_AGNOSTIC_BBOX_REG": cascade or regressions < 4 * num_classes,
        "MODEL.ROI_HEADS.CASCADE_IOUS": [0.5, 0.6, 0.7] if cascade else [],
        "MODEL.ROI_BOX_HEAD.NUM_CLASSES": num_classes,
        "MODEL.ROI_BOX_HEAD.POOLER_TYPE": pooler,
        "MODEL.ROI_MASK_HEAD.POOLER_TYPE": pooler,
    }
    box = f"{head}.feature_extractor"
    fc6, convs = state.get(f"{box}.fc6.weight"), _widths(state, f"{box}.convs.")
    if fc6 is not None:
        channels = convs[-1] if convs else _pooled_channels(state)
        extractor = "FPNXconv1fcFeatureExtractor" if convs else "FPN2MLPFeatureExtractor"
        config |= section(
            "MODEL.ROI_BOX_HEAD",
            FEATURE_EXTRACTOR=extractor,
            PREDICTOR="FPNPredictor",
            POOLER_RESOLUTION=math.isqrt(fc6.shape[1] // channels),
            POOLER_SAMPLING_RATIO=sampling,
            MLP_HEAD_DIM=len(fc6),
            NORM=_norm(state, f"{box}.convs.0.1" if convs else f"{box}.norm6"),
        )
        config |= section(
            "MODEL.ROI_MASK_HEAD",
            FEATURE_EXTRACTOR="MaskRCNNFPNFeatureExtractor",
            SHARE_BOX_FEATURE_EXTRACTOR=False,
            POOLER_SAMPLING_RATIO=sampling,
        )
    if convs:
        config |= section(
            "MODEL.ROI_BOX_HEAD", NUM_STACKED_CONVS=len(convs), CONV_HEAD_DIM=convs[-1]
        )
    if "roi_heads.keypoint.predictor.kps_score_lowres.weight" in state:
        config |= _keypoint_head(state, pooler, sampling)
    if mask:
        mask_convs = "roi_heads.mask.feature_extractor.convs."
        last = state["roi_heads.mask.predictor.conv5_mask.weight"].shape[1]
        config |= section(
            "MODEL.ROI_MASK_HEAD",
            CONV_LAYERS=_widths(state, mask_convs) or [last],
            NORM=_norm(state, f"{mask_convs}0.1"),
            RESOLUTION=14 if fc6 is None else 28,
        )
    return config


def _retinanet(state: StateDict) -> ConfigValues:
    towers = "head.cls_tower."
    anchors = len(state["head.bbox_pred.bias"]) // 4
    p6 = state["backbone.neck.top.p6.weight"]
    return {"MODEL.META_ARCHITECTURE": "RetinaNet"} | section(
        "MODEL.RETINANET",
        USE_C5=p6.shape[0] != p6.shape[1],
        NUM_CONVS=len(_widths(state, towers)),
        NORM=_norm(state, f"{towers}0.1.0") or _norm(state, f"{towers}0.1"),
        NUM_CLASSES=1 + len(state["head.cls_logits.bias"]) // anchors,
    )


def _keypoint_head(state: StateDict, pooler: str, sampling: int) -> ConfigValues:
    deconv = state["roi_heads.keypoint.predictor.kps_score_lowres.weight"]
    widths = _widths(state, "roi_heads.keypoint.feature_extractor.convs.")
    config = {"MODEL.KEYPOINT_ON": True} | section(
        "MODEL.ROI_KEYPOINT_HEAD", NUM_CLASSES=deconv.shape[1], RESOLUTION=56 if widths else 28
    )
    if widths:  # otherwise it shares the last stage with the box head of a C4 model
        config |= section(
            "MODEL.ROI_KEYPOINT_HEAD",
            POOLER_TYPE=pooler,
            POOLER_SAMPLING_RATIO=sampling,
            CONV_LAYERS=widths,
            SHARE_BOX_FEATURE_EXTRACTOR=False,
        )
    return config


def _pooled_channels(state: StateDict) -> int:
    """Return the channels of the feature maps that heads pool from."""
    stages = (f"backbone.body.res{stage}.0.conv{n}.weight" for stage in (5, 4) for n in (3, 2))
    return next(len(state[name]) for name in (_FPN, *stages) if name in state)


def _widths(state: StateDict, convs: str) -> list[int]:
    """Return the output channels of a sequence of convolutions."""
    widths: list[int] = []
    while (weight := state.get(f"{convs}{len(widths)}.0.weight")) is not None:
        widths.append(len(weight))
    return widths


def _count_blocks(state: StateDict, stage: int) -> int:
    """Count the blocks of a stage; res5 of a C4 model is in its box head."""
    prefixes = (f"backbone.body.res{stage}.", f"roi_heads.box.feature_extractor.res{stage}.")
    return sum(name.startswith(prefixes) and name.endswith(".conv1.weight") for name in state)


def _norm(state: StateDict, layer: str) -> str:
    """Return the type of norm of a layer; "" if it has none."""
    if f"{layer}.running_mean" in state:
        return "BN" if f"{layer}.num_batches_tracked" in state else "FrozenBN"
    return "GN" if f"{layer}.weight" in state else ""
