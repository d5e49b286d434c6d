"""detectron2: detectors of its model zoo, and ResNet classifiers."""

import re
from itertools import product
from pathlib import Path
from typing import Any

import torch

from detlite.conversion.checkpoint_source import (
    CheckpointSource,
    ConfigValues,
    RawStateDict,
    StateDict,
    section,
)
from detlite.conversion.infer_config import L1_RETINANET, infer_config, is_retinanet
from detlite.conversion.regnet import REGNET_RULES

from .model_zoo import anchor_config, config_by_name, config_by_shape, stored_pixel_config
from .vitdet import VITDET_RULES, is_vitdet, vitdet_config

_RULES = [
    *REGNET_RULES,
    *VITDET_RULES,
    # backbones of a classifier, of a C4 model, of a pyramid
    (r"^(stem|res\d)\.", r"backbone.\1."),
    (r"^backbone\.(stem|res\d)\.", r"backbone.body.\1."),
    (r"^backbone\.bottom_up\.", "backbone.body."),
    (r"((?:stem|res\d\.\d+)\.)conv(\d)\.norm\.", r"\1norm\2."),
    (r"\.conv2_offset\.", ".conv2.offset."),
    (r"\.shortcut\.weight$", ".downsample.0.weight"),
    (r"\.shortcut\.norm\.", ".downsample.1."),
    (r"(fpn_\w+\d|mask_fcn\d|conv_fcn\d|box_head\.(?:\d\.)?conv\d)\.norm\.", r"\1.1."),
    (r"(fpn_\w+\d|mask_fcn\d|conv_fcn\d|box_head\.(?:\d\.)?conv\d)\.(?=weight|bias)", r"\1.0."),
    *((rf"\.fpn_(lateral|output){n}\.", rf".neck.\1.{n - 2}.") for n in range(2, 6)),
    (r"^backbone\.top_block\.", "backbone.neck.top."),
    (r"^head\.(cls|bbox)_subnet\.", r"head.\1_tower."),
    (r"^head\.cls_score\.", "head.cls_logits."),
    (r"^proposal_generator\.rpn_head\.", "rpn.head."),
    (r"^rpn\.head\.objectness_logits\.", "rpn.head.cls_logits."),
    (r"^rpn\.head\.anchor_deltas\.", "rpn.head.bbox_pred."),
    # convolutions of an RPN head with several
    (r"^rpn\.head\.conv\.conv0\.", "rpn.head.conv."),
    *((rf"^rpn\.head\.conv\.conv{n}\.", f"rpn.head.more_convs.{n - 1}.") for n in range(1, 4)),
    # stages of a cascade
    (r"^roi_heads\.box_predictor\.(\d\.)?", r"roi_heads.box.\1predictor."),
    (r"^roi_heads\.box_head\.(\d\.)?", r"roi_heads.box.\1feature_extractor."),
    (r"_extractor\.fc1\.", "_extractor.fc6."),
    (r"_extractor\.fc2\.", "_extractor.fc7."),
    (r"^roi_heads\.res5\.", "roi_heads.box.feature_extractor.res5."),
    (r"^roi_heads\.mask_head\.deconv\.", "roi_heads.mask.predictor.conv5_mask."),
    (r"^roi_heads\.mask_head\.predictor\.", "roi_heads.mask.predictor.mask_fcn_logits."),
    (r"^roi_heads\.keypoint_head\.score_lowres\.",
     "roi_heads.keypoint.predictor.kps_score_lowres."),
    (r"^roi_heads\.(mask|keypoint)_head\.\w+_fcn", r"roi_heads.\1.feature_extractor.conv"),
    *((rf"_extractor\.conv{n}\.", f"_extractor.convs.{n - 1}.") for n in range(1, 9)),
]  # fmt: skip

# Classification layers, and the semantic head of a panoptic model.
_UNUSED = r"(^|\.)(anchor_generator\.|pixel_mean$|pixel_std$)|^(stem\.fc|linear)\.|^sem_seg_head\."


def _adapt(state: StateDict, raw: RawStateDict) -> StateDict:
    state = _number_tower_blocks(state)
    _nest_deformable(state)
    move_background_first(state)
    node = _anchor_section(state)
    ratios = anchor_config(raw, node).get(f"{node}.ASPECT_RATIOS", ())
    order_anchors_by_ratio(state, len(ratios) or None)
    return state


def _number_tower_blocks(state: StateDict) -> StateDict:
    """Number the layers of RetinaNet's towers by block: convolution, norm if any, and ReLU."""
    length = 3 if any(name.startswith("head.cls_tower.1.") for name in state) else 2

    def renumber(match: re.Match[str]) -> str:
        block, layer = divmod(int(match[2]), length)
        return f"head.{match[1]}_tower.{block}.{layer}."

    pattern = re.compile(r"^head\.(cls|bbox)_tower\.(\d+)\.")
    return {pattern.sub(renumber, name): value for name, value in state.items()}


def _nest_deformable(state: StateDict) -> None:
    """Move deformable convolutions into the layer of their offsets, in place."""
    for name in [name for name in state if name.endswith(".conv2.offset.weight")]:
        layer = name.removesuffix(".offset.weight")
        if f"{layer}.weight" in state:
            state[f"{layer}.conv.weight"] = state.pop(f"{layer}.weight")


def move_background_first(state: StateDict) -> None:
    """Move the background, which has scores but neither boxes nor masks, to class 0, in place.

    A class-agnostic mask is repeated for each class.
    """
    rows = {"bbox_pred": 4, "mask_fcn_logits": 1}
    classes = [len(value) for name, value in state.items() if name.endswith(".cls_score.bias")]
    for name, value in state.items():
        layer = name.rpartition(".")[0].rpartition(".")[2]
        if layer == "cls_score":
            state[name] = value.roll(1, dims=0)
        elif layer in rows and name.startswith("roi_heads."):
            background = value.new_zeros((rows[layer], *value.shape[1:]))
            if layer == "mask_fcn_logits" and len(value) == 1 and classes:
                value = value.expand(classes[0] - 1, *value.shape[1:])
            state[name] = torch.cat([background, value])


def order_anchors_by_ratio(state: StateDict, ratios: int | None = None) -> None:
    """Reorder the anchors of a cell from (size, ratio) to (ratio, size), in place.

    `ratios` is the number of aspect ratios. None: 3, or the number of anchors if that is not a
    multiple of 3.
    """
    for head in ("rpn.head.", "head."):
        if f"{head}bbox_pred.bias" not in state:
            continue
        anchors_per_cell = len(state[f"{head}bbox_pred.bias"]) // 4
        count = ratios or (anchors_per_cell if anchors_per_cell % 3 else 3)
        for layer, leaf in product(("cls_logits", "bbox_pred"), ("weight", "bias")):
            name = f"{head}{layer}.{leaf}"
            if name in state:
                values = len(state[name]) // anchors_per_cell
                anchors = state[name].unflatten(0, (-1, count, values))
                state[name] = anchors.transpose(0, 1).flatten(0, 2)


# Defaults of its published models.
_CONFIG: ConfigValues = {
    **section("MODEL.RPN", STRADDLE_THRESH=-1, FPN_POST_NMS_PER_BATCH=False, SMOOTH_L1_BETA=0.0),
    **section("MODEL.RPN", FPN_POST_NMS_TOP_N_TRAIN=1000, FPN_POST_NMS_TOP_N_TEST=1000),
    "MODEL.ROI_BOX_HEAD.SMOOTH_L1_BETA": 0.0,
    "INPUT.PIXEL_MEAN": [103.53, 116.28, 123.675],
}


def _configure(
    state: StateDict, raw: RawStateDict, path: Path, _content: Any
) -> tuple[ConfigValues, ConfigValues]:
    if is_vitdet(state):
        return _CONFIG | vitdet_config(state), {}
    config = _CONFIG | infer_config(state, "ROIAlignV2", 0)
    if config["MODEL.BACKBONE.CONV_BODY"].endswith("-C5"):
        config["MODEL.RESNETS.RES5_DILATION"] = 2
    if is_retinanet(state):
        config |= L1_RETINANET
    if config.get("MODEL.KEYPOINT_ON"):
        config["MODEL.ROI_BOX_HEAD.SMOOTH_L1_BETA"] = 0.5
        config["MODEL.RPN.FPN_POST_NMS_TOP_N_TRAIN"] = 1500
    if config.get("MODEL.ROI_HEADS.CASCADE_IOUS"):
        config["MODEL.RPN.FPN_POST_NMS_TOP_N_TRAIN"] = 2000
    config |= config_by_shape(config, _stem_trained(state))
    stored = stored_pixel_config(raw) | anchor_config(raw, _anchor_section(state))
    return config, stored | config_by_name(path)


def _stem_trained(state: StateDict) -> bool:
    """True if the norm of the stem was trained: frozen norms have no batch counter, or 0."""
    names = (f"backbone.body.{norm}.num_batches_tracked" for norm in ("stem.norm1", "net.stem.bn"))
    return any(name in state and bool((state[name] > 0).any()) for name in names)


def _anchor_section(state: StateDict) -> str:
    return "MODEL.RETINANET" if is_retinanet(state) else "MODEL.RPN"


DETECTRON2 = CheckpointSource(
    names=r"^(proposal_generator|backbone\.bottom_up|backbone\.stem|stem\.conv1)\.",
    convention="detectron2",
    rules=_RULES,
    unused=_UNUSED,
    adapt=_adapt,
    configure=_configure,
)
