"""The config that converted weights need: their framework's dialect, and what shapes tell."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from torch import Tensor

from ..config.maskrcnn_benchmark import COUNTING
from ..modeling.backbone.resnet import DEPTHS
from .detectron2_zoo import unsaid_settings
from .dialects import DIALECTS, POOLERS, RETINANET_DIALECTS, Settings

State = Mapping[str, Tensor]


def settings_for(state: State, source: str) -> Settings:
    """The config keys and values of a converted detector.

    Args:
        state: its entries, by our names.
        source: a key of DIALECTS.

    Raises:
        ValueError: a body that is no ResNet of a known depth.
    """
    settings: Settings = {**DIALECTS[source], **_body(state, source)}
    if is_retinanet(state):
        settings |= _retinanet(state, source)
    else:
        settings |= {"MODEL.LOAD_PROPOSALS": True} if is_fast_rcnn(state) else _rpn(state)
        if is_rpn_only(state):
            settings |= _proposals_as_output(state)
        else:
            settings |= _heads(state, source)
    norm = settings["MODEL.RESNETS.NORM"]
    if norm == "BN":
        settings["MODEL.RESNETS.BN_EPSILON"] = 1e-5
        settings["MODEL.BACKBONE.FREEZE_NORM"] = source != "torchvision"
    if norm == "GN" or settings["MODEL.RESNETS.NUM_GROUPS"] > 1:
        # Neither group norm nor ResNeXt was ever trained with the stride in its 1x1.
        settings["MODEL.RESNETS.STRIDE_IN_1X1"] = False
    if source == "detectron2":
        settings |= unsaid_settings(settings)
    return settings


def unstated(state: State, source: str) -> Settings:
    """The keys and values of a detector that a YAML file of its framework does not state.

    None but for maskrcnn-benchmark and Caffe2, whose YAML files are read here too.

    Args:
        state: its entries, by our names.
        source: a key of DIALECTS.
    """
    if DIALECTS[source] is not DIALECTS["maskrcnn-benchmark"]:
        return {}
    dialect = dict(COUNTING)
    if "backbone.body.stem.norm1.num_batches_tracked" in state:  # not frozen
        dialect["MODEL.RESNETS.BN_EPSILON"] = 1e-5
    return dialect


def is_retinanet(state: State) -> bool:
    """Whether a detector's entries, by our names, are a RetinaNet's."""
    return "head.cls_logits.weight" in state


def is_rpn_only(state: State) -> bool:
    """Whether a detector's entries, by our names, are region proposals alone."""
    return not is_retinanet(state) and not any(name.startswith("roi_heads.") for name in state)


def is_fast_rcnn(state: State) -> bool:
    """Whether a detector's entries, by our names, are heads without region proposals."""
    return not is_retinanet(state) and not any(name.startswith("rpn.") for name in state)


def _body(state: State, source: str) -> Settings:
    blocks = {
        stage: 1 + max((int(found[1]) for found in found_in), default=-1)
        for stage in range(2, 6)
        for found_in in [[m for m in map(_block(stage).match, state) if m]]
    }
    bottleneck = "backbone.body.res2.0.conv3.weight" in state
    depth = next(
        (
            depth
            for depth, counts in DEPTHS.items()
            if bottleneck == (depth >= 50)
            # proposals alone need no more than C4
            and tuple(blocks.values())
            in (counts, (*counts[:3], 0) if is_rpn_only(state) else counts)
        ),
        None,
    )
    if depth is None:
        raise ValueError(
            f"the body has {list(blocks.values())} blocks in its stages, which is no ResNet of "
            f"depth {sorted(DEPTHS)}"
        )
    deformable = [f"backbone.body.res{stage}.0.conv2.offset.weight" for stage in range(2, 6)]
    with_dcn = [name in state for name in deformable]
    conv2 = state[f"backbone.body.res2.0.conv2.{'conv.' if with_dcn[0] else ''}weight"]
    if is_retinanet(state):
        kind = "FPN-RETINANET"
    elif "backbone.neck.output.0.0.weight" in state:
        kind = "FPN"
    else:
        kind = "C5" if "backbone.body.res5.0.conv2.weight" in state else "C4"
    last = state[f"backbone.body.res2.0.conv{3 if bottleneck else 2}.weight"]
    settings: Settings = {
        "MODEL.BACKBONE.CONV_BODY": f"R-{depth}-{kind}",
        "MODEL.RESNETS.NORM": _norm(state, "backbone.body.stem.norm1"),
        "MODEL.RESNETS.NUM_GROUPS": conv2.shape[0] // conv2.shape[1],
        "MODEL.RESNETS.WIDTH_PER_GROUP": conv2.shape[1] if bottleneck else 64,
        "MODEL.RESNETS.STEM_OUT_CHANNELS": len(state["backbone.body.stem.conv1.weight"]),
        "MODEL.RESNETS.RES2_OUT_CHANNELS": len(last),
    }
    if any(with_dcn):
        channels = len(state[deformable[with_dcn.index(True)]])  # 9 taps, of 2 or 3 values each
        settings["MODEL.RESNETS.STAGE_WITH_DCN"] = with_dcn
        settings["MODEL.RESNETS.WITH_MODULATED_DCN"] = channels % 27 == 0
        settings["MODEL.RESNETS.DEFORMABLE_GROUPS"] = channels // (27 if channels % 27 == 0 else 18)
    if kind == "C5" and source == "detectron2":
        settings["MODEL.RESNETS.RES5_DILATION"] = 2
    if kind.startswith("FPN"):
        settings |= {
            "MODEL.RESNETS.BACKBONE_OUT_CHANNELS": len(state["backbone.neck.output.0.0.weight"]),
            "MODEL.FPN.NORM": _norm(state, "backbone.neck.output.0.1"),
            "DATALOADER.SIZE_DIVISIBILITY": 32,
        }
    return settings


def _rpn(state: State) -> Settings:
    fpn = "backbone.neck.output.0.0.weight" in state
    more_convs = sum(name.startswith("rpn.head.more_convs.") for name in state) // 2
    settings: Settings = {
        "MODEL.RPN.NUM_CONVS": 1 + more_convs,
        "MODEL.RPN.PRE_NMS_TOP_N_TRAIN": 2000 if fpn else 12000,
        "MODEL.RPN.PRE_NMS_TOP_N_TEST": 1000 if fpn else 6000,
    }
    if not fpn and len(state["rpn.head.cls_logits.weight"]) == 9:
        # those of the Faster R-CNN paper, and of maskrcnn-benchmark for PASCAL VOC
        settings["MODEL.RPN.ANCHOR_SIZES"] = [128, 256, 512]
        settings["MODEL.RPN.POST_NMS_TOP_N_TEST"] = 300
    return settings


def _proposals_as_output(state: State) -> Settings:
    settings: Settings = {
        "MODEL.RPN_ONLY": True,
        "MODEL.ROI_BOX_HEAD.NUM_CLASSES": 2,
        "MODEL.RPN.POST_NMS_TOP_N_TEST": 2000,
        "MODEL.RPN.FPN_POST_NMS_TOP_N_TEST": 2000,
    }
    if "backbone.neck.output.0.0.weight" not in state:
        settings["MODEL.RPN.PRE_NMS_TOP_N_TEST"] = 12000
    return settings


def _heads(state: State, source: str) -> Settings:
    cascade = "roi_heads.box.0.predictor.cls_score.weight" in state
    head = "roi_heads.box.0" if cascade else "roi_heads.box"
    num_classes = len(state[f"{head}.predictor.cls_score.weight"])
    regressions = len(state[f"{head}.predictor.bbox_pred.weight"])
    mask = "roi_heads.mask.predictor.mask_fcn_logits.weight" in state
    pooler, sampling = POOLERS[source]
    settings: Settings = {
        "MODEL.MASK_ON": mask,
        "MODEL.CLS_AGNOSTIC_BBOX_REG": cascade or regressions < 4 * num_classes,
        "MODEL.ROI_HEADS.CASCADE_IOUS": [0.5, 0.6, 0.7] if cascade else [],
        "MODEL.ROI_BOX_HEAD.NUM_CLASSES": num_classes,
        "MODEL.ROI_BOX_HEAD.POOLER_TYPE": pooler,
        "MODEL.ROI_MASK_HEAD.POOLER_TYPE": pooler,
    }
    box = f"{head}.feature_extractor"
    convs = _widths(state, f"{box}.convs.")
    if f"{box}.fc6.weight" in state:
        fc6 = state[f"{box}.fc6.weight"]
        channels = convs[-1] if convs else _pooled_channels(state)
        settings |= {
            "MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR": (
                "FPNXconv1fcFeatureExtractor" if convs else "FPN2MLPFeatureExtractor"
            ),
            "MODEL.ROI_BOX_HEAD.PREDICTOR": "FPNPredictor",
            "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION": math.isqrt(fc6.shape[1] // channels),
            "MODEL.ROI_BOX_HEAD.POOLER_SAMPLING_RATIO": sampling,
            "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM": len(fc6),
            "MODEL.ROI_BOX_HEAD.NORM": _norm(
                state, f"{box}.convs.0.1" if convs else f"{box}.norm6"
            ),
            "MODEL.ROI_MASK_HEAD.FEATURE_EXTRACTOR": "MaskRCNNFPNFeatureExtractor",
            "MODEL.ROI_MASK_HEAD.SHARE_BOX_FEATURE_EXTRACTOR": False,
            "MODEL.ROI_MASK_HEAD.POOLER_SAMPLING_RATIO": sampling,
        }
    if convs:
        settings["MODEL.ROI_BOX_HEAD.NUM_STACKED_CONVS"] = len(convs)
        settings["MODEL.ROI_BOX_HEAD.CONV_HEAD_DIM"] = convs[-1]
    if "roi_heads.keypoint.predictor.kps_score_lowres.weight" in state:
        settings |= _keypoint_head(state, pooler, sampling)
        if source == "detectron2":
            settings["MODEL.ROI_BOX_HEAD.SMOOTH_L1_BETA"] = 0.5
            settings["MODEL.RPN.FPN_POST_NMS_TOP_N_TRAIN"] = 1500
    if cascade:
        settings["MODEL.RPN.FPN_POST_NMS_TOP_N_TRAIN"] = 2000
    if mask:
        mask_convs = "roi_heads.mask.feature_extractor.convs."
        last = state["roi_heads.mask.predictor.conv5_mask.weight"].shape[1]
        settings |= {
            "MODEL.ROI_MASK_HEAD.CONV_LAYERS": _widths(state, mask_convs) or [last],
            "MODEL.ROI_MASK_HEAD.NORM": _norm(state, f"{mask_convs}0.1"),
            "MODEL.ROI_MASK_HEAD.RESOLUTION": 28 if f"{box}.fc6.weight" in state else 14,
        }
    return settings


def _retinanet(state: State, source: str) -> Settings:
    towers = "head.cls_tower."
    anchors = len(state["head.bbox_pred.bias"]) // 4
    scores = len(state["head.cls_logits.bias"]) // anchors
    p6 = state["backbone.neck.top.p6.weight"]
    norm = _norm(state, f"{towers}0.1")
    settings = {
        **RETINANET_DIALECTS[source],
        "MODEL.RETINANET_ON": True,
        "MODEL.RETINANET.USE_C5": p6.shape[0] != p6.shape[1],
        "MODEL.RETINANET.NUM_CONVS": len(_widths(state, towers)),
        "MODEL.RETINANET.NORM": norm,
    }
    if source == "torchvision" and norm == "GN":  # its second version
        settings["MODEL.RETINANET.BOX_LOSS"] = "giou"
    background = settings.get("MODEL.RETINANET.SCORES_BACKGROUND", False)
    settings["MODEL.RETINANET.NUM_CLASSES"] = scores + (not background)
    return settings


def _keypoint_head(state: State, pooler: str, sampling: int) -> Settings:
    prefix = "roi_heads.keypoint.feature_extractor.convs."
    deconv = state["roi_heads.keypoint.predictor.kps_score_lowres.weight"]
    widths = _widths(state, prefix)
    settings: Settings = {
        "MODEL.KEYPOINT_ON": True,
        "MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES": deconv.shape[1],
    }
    if not widths:  # it shares the last stage of a C4 model's box head
        return {**settings, "MODEL.ROI_KEYPOINT_HEAD.RESOLUTION": 28}
    return {
        **settings,
        "MODEL.ROI_KEYPOINT_HEAD.POOLER_TYPE": pooler,
        "MODEL.ROI_KEYPOINT_HEAD.POOLER_SAMPLING_RATIO": sampling,
        "MODEL.ROI_KEYPOINT_HEAD.CONV_LAYERS": widths,
        "MODEL.ROI_KEYPOINT_HEAD.RESOLUTION": 56,
        "MODEL.ROI_KEYPOINT_HEAD.SHARE_BOX_FEATURE_EXTRACTOR": False,
    }


def _pooled_channels(state: State) -> int:
    """Channels of the maps that heads pool from: the pyramid's, or those of the last stage."""
    stages = (f"backbone.body.res{stage}.0.conv{n}.weight" for stage in (5, 4) for n in (3, 2))
    names = ("backbone.neck.output.0.0.weight", *stages)
    return next(len(state[name]) for name in names if name in state)


def _widths(state: State, convs: str) -> list[int]:
    """Output channels of a row of convolutions; sorted by place, as a file may hold any order."""
    places = sorted(
        int(name.removeprefix(convs).removesuffix(".0.weight"))
        for name in state
        if name.startswith(convs) and name.endswith(".0.weight")
    )
    return [len(state[f"{convs}{place}.0.weight"]) for place in places]


def _block(stage: int) -> re.Pattern[str]:
    """Names of a stage's blocks; res5 of a C4 model is in its box head."""
    return re.compile(
        rf"(?:backbone\.body|roi_heads\.box\.feature_extractor)\.res{stage}\.(\d+)\.conv1\.weight$"
    )


def _norm(state: State, layer: str) -> str:
    """The norm that a layer is, by what it keeps; "" where there is none."""
    if f"{layer}.running_mean" in state:
        return "BN" if f"{layer}.num_batches_tracked" in state else "FrozenBN"
    return "GN" if f"{layer}.weight" in state else ""
