"""detectron2: the detectors of its model zoo, and its ResNet classifiers."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection
from itertools import product
from pathlib import Path
from typing import Any

import torch

from detlite.conversion.checkpoint_source import (
    Config,
    Entries,
    Rules,
    Source,
    State,
    levels_from_0,
)
from detlite.conversion.infer_config import L1_RETINANET, is_retinanet, read_config
from detlite.conversion.regnet import REGNET_RULES

from .model_zoo import anchor_config, config_by_name, config_by_shape, pixel_config
from .vitdet import VITDET_RULES, is_vitdet, vitdet_config


def _recognise(names: Collection[str]) -> bool:
    own = re.compile(r"(proposal_generator|backbone\.bottom_up|backbone\.stem|stem\.conv1)\.")
    return any(own.match(name) for name in names)


_RULES: Rules = [
    *REGNET_RULES,
    *VITDET_RULES,
    # a body alone, that of a C4 model, that of a pyramid
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
    # several convolutions are numbered
    (r"^rpn\.head\.conv\.conv0\.", "rpn.head.conv."),
    *((rf"^rpn\.head\.conv\.conv{n}\.", f"rpn.head.more_convs.{n - 1}.") for n in range(1, 4)),
    # the stages of a cascade are numbered
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

# What a classifier scores by, and what a panoptic model has beside its instances.
_UNUSED = r"(^|\.)(anchor_generator\.|pixel_mean$|pixel_std$)|^(stem\.fc|linear)\.|^sem_seg_head\."


def _adapt(state: State, entries: Entries) -> State:
    state = _by_block(levels_from_0(state))
    _nest_deformable(state)
    background_first(state)
    ratios = anchor_config(entries, _part(state)).get(f"{_part(state)}.ASPECT_RATIOS", ())
    ratios_slowest(state, len(ratios) or None)
    return state


def _by_block(state: State) -> State:
    """Numbers the layers of RetinaNet's towers by block: there convolutions, norms and ReLUs count
    alike, so that the number of a layer depends on whether there are norms."""
    layer = re.compile(r"^head\.(cls|bbox)_tower\.(\d+)\.")
    numbers = (int(match[2]) for n, v in state.items() if v.ndim == 4 and (match := layer.match(n)))
    convs = sorted(set(numbers))  # of both towers, which are alike

    def numbered(match: re.Match[str]) -> str:
        block = bisect_right(convs, int(match[2])) - 1
        if block < 0:  # a tower that begins with no convolution
            return match[0]
        return f"head.{match[1]}_tower.{block}.{int(match[2]) - convs[block]}."

    return {layer.sub(numbered, name): value for name, value in state.items()}


def _nest_deformable(state: State) -> None:
    """Puts a convolution beside that of its offsets, under the same layer."""
    for name in [name for name in state if name.endswith(".conv2.offset.weight")]:
        layer = name.removesuffix(".offset.weight")
        if f"{layer}.weight" in state:
            state[f"{layer}.conv.weight"] = state.pop(f"{layer}.weight")


def background_first(state: State) -> None:
    """Moves the background, which has scores but neither boxes nor masks, to class 0.

    A mask that is common to all classes becomes that of each.
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


def ratios_slowest(state: State, ratios: int | None = None) -> None:
    """Reorders the anchors of a cell: by size, then ratio, becomes by ratio, then size.

    Args:
        state: changed in place.
        ratios: how many; None: 3, or as many as anchors where these are not a multiple of 3.
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


# The defaults of its published models.
_CONFIG: Config = {
    "MODEL.RPN.STRADDLE_THRESH": -1,
    "MODEL.RPN.FPN_POST_NMS_PER_BATCH": False,
    "MODEL.RPN.FPN_POST_NMS_TOP_N_TRAIN": 1000,
    "MODEL.RPN.FPN_POST_NMS_TOP_N_TEST": 1000,
    "MODEL.RPN.SMOOTH_L1_BETA": 0.0,
    "MODEL.ROI_BOX_HEAD.SMOOTH_L1_BETA": 0.0,
    "INPUT.PIXEL_MEAN": [103.53, 116.28, 123.675],
}


def _configure(state: State, entries: Entries, path: Path, _content: Any) -> Config:
    if "head.ctrness.weight" in state:
        raise ValueError("is an FCOS, which is none of the detectors here")
    if is_vitdet(state):
        return _CONFIG | vitdet_config(state)
    config = _CONFIG | read_config(state, "ROIAlignV2", 0)
    if config["MODEL.BACKBONE.CONV_BODY"].endswith("-C5"):
        config["MODEL.RESNETS.RES5_DILATION"] = 2
    if is_retinanet(state):
        config |= L1_RETINANET
    if config.get("MODEL.KEYPOINT_ON"):
        config["MODEL.ROI_BOX_HEAD.SMOOTH_L1_BETA"] = 0.5
        config["MODEL.RPN.FPN_POST_NMS_TOP_N_TRAIN"] = 1500
    if config.get("MODEL.ROI_HEADS.CASCADE_IOUS"):
        config["MODEL.RPN.FPN_POST_NMS_TOP_N_TRAIN"] = 2000
    config |= (
        config_by_shape(config, _stem_trained(state))
        | pixel_config(entries)
        | anchor_config(entries, _part(state))
    )
    return config | config_by_name(path)


def _stem_trained(state: State) -> bool:
    """A frozen norm has no counter of batches in files of older versions, and counts none since."""
    names = (f"backbone.body.{norm}.num_batches_tracked" for norm in ("stem.norm1", "net.stem.bn"))
    return any(name in state and bool((state[name] > 0).any()) for name in names)


def _part(state: State) -> str:
    return "MODEL.RETINANET" if is_retinanet(state) else "MODEL.RPN"


DETECTRON2 = Source(
    name="detectron2",
    convention="detectron2",
    recognise=_recognise,
    rules=_RULES,
    unused=_UNUSED,
    adapt=_adapt,
    configure=_configure,
)
