"""maskrcnn-benchmark: R-CNNs, RPNs and RetinaNets on ResNets and FBNets.

Also Detectron, whose files (of Caffe2) it loads: detectors and ImageNet classifiers.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from detlite.conventions import CONVENTIONS
from detlite.modeling.rpn.anchors import AnchorGenerator

from .checkpoint_source import CheckpointSource, ConfigValues, RawStateDict, StateDict, section
from .infer_config import infer_config, is_retinanet

_RULES = [
    *((rf"\.layer{n}\.", f".res{n + 1}.") for n in range(1, 5)),
    (r"\.bn(\d)\.", r".norm\1."),
    (r"^rpn\.head\.(?:0\.(?=head\.)|1\.)", "rpn.head."),  # FBNets have a sequence
    (r"^(roi_heads\.\w+\.feature_extractor)\.head\.", r"\1."),
    # the heads of a C4 model share this stage, and the file has it once per head
    (r"^roi_heads\.\w+\.feature_extractor\.res5\.", "roi_heads.box.feature_extractor.res5."),
    # a convolution alone, or followed by its group norm
    (r"(fpn_(?:inner|layer)\d|mask_fcn\d|conv_fcn\d|fc[67])\.(weight|bias)$", r"\1.0.\2"),
    *((rf"^backbone\.fpn\.fpn_inner{n}\.", f"backbone.neck.lateral.{n - 1}.") for n in range(1, 5)),
    *((rf"^backbone\.fpn\.fpn_layer{n}\.", f"backbone.neck.output.{n - 1}.") for n in range(1, 5)),
    (r"^backbone\.fpn\.top_blocks\.", "backbone.neck.top."),
    *((rf"^rpn\.head\.(cls|bbox)_tower\.{2 * n}\.", rf"head.\1_tower.{n}.0.") for n in range(8)),
    # sequences of convolution, group norm and ReLU
    *((rf"\.xconvs\.{3 * n + k}\.", f".convs.{n}.{k}.") for n in range(8) for k in range(2)),
    (r"\.fc([67])\.0\.", r".fc\1."),
    (r"\.fc([67])\.1\.", r".norm\1."),
    *((rf"\.(mask|conv)_fcn{n}\.", f".convs.{n - 1}.") for n in range(1, 9)),
]  # fmt: skip


def _adapt(state: StateDict, _raw: RawStateDict) -> StateDict:
    if any(name.startswith("head.") for name in state):  # a RetinaNet
        state = {re.sub(r"^rpn\.head\.", "head.", name): value for name, value in state.items()}
    return state


def _configure(
    state: StateDict, raw: RawStateDict, _path: Path, _content: Any
) -> tuple[ConfigValues, ConfigValues]:
    """Infer the config; empty for FBNets, whose weights do not determine their operators."""
    if any(name.startswith("backbone.body.stages.xif") for name in state):
        return {}, {}
    config = {"MODEL.RPN.FPN_POST_NMS_TOP_N_TEST": 1000, **infer_config(state, "ROIAlign", 2)}
    return config, _stored_anchors(raw, is_retinanet(state))


def _stored_anchors(raw: RawStateDict, retinanet: bool) -> ConfigValues:
    """Return the keys that generate the cell anchors [A, 4] of each level; empty if none do.

    The anchors are sorted by aspect ratio, then by size, and contain their last pixel.
    """
    names = sorted(name for name in raw if ".cell_anchors." in name)
    cells = [np.asarray(raw[name], np.float64) for name in names]
    if not cells or len({level.shape for level in cells}) > 1:
        return {}
    sides = np.stack(cells)[..., 2:] - np.stack(cells)[..., :2] + 1  # [levels, A, 2]
    shapes = sides[-1, :, 1] / sides[-1, :, 0]  # sides are rounded least on the coarsest level
    finest = 16 if len(cells) == 1 else 8 if retinanet else 4
    strides = np.array([finest << level for level in range(len(cells))])
    node, convention = "RETINANET" if retinanet else "RPN", CONVENTIONS["maskrcnn-benchmark"]
    for digits in (1, 2):  # several ratios may have the same sides: prefer the simplest
        rounded = shapes.round(digits).clip(0.01)
        ratios = list(dict.fromkeys(rounded.tolist()))
        # An anchor of the first ratio whose size is the stride has this width.
        widths = (strides / ratios[0] ** 0.5).round()
        scales = sides[:, rounded == ratios[0], 0] / widths[:, None]
        sizes = (scales * strides[:, None]).round(4).tolist()
        generator = AnchorGenerator(sizes, ratios, strides.tolist(), convention)
        boxes = torch.stack([*generator.buffers()])
        found = (boxes[..., 2:] - boxes[..., :2]).numpy()
        if found.shape == sides.shape and np.allclose(found, sides, atol=0.01):
            config = section(f"MODEL.{node}", ANCHOR_SIZES=sizes, ASPECT_RATIOS=ratios)
            return config | section("MODEL.RETINANET", SCALES_PER_OCTAVE=1) if retinanet else config
    return {}


MASKRCNN_BENCHMARK = CheckpointSource(
    names=r"^(backbone\.body\.stem\.bn1\.weight$|rpn\.head\.0\.head\."
    r"|roi_heads\.\w+\.feature_extractor\.head\.)",
    convention="maskrcnn-benchmark",
    rules=_RULES,
    unused=r"(^|\.)anchor_generator\.",
    adapt=_adapt,
    configure=_configure,
)

_CAFFE2_RULES = [
    (r"_w$", ".weight"),
    (r"_b$", ".bias"),
    (r"_(bn|gn)_(?:s|gamma)$", r"_\1.weight"),
    (r"_(bn|gn)(?:\.bias|_beta)$", r"_\1.bias"),
    # present only if the statistics are not folded into the scales
    (r"_bn_(?:running_mean|rm)$", "_bn.running_mean"),
    (r"_bn_(?:running_var|riv)$", "_bn.running_var"),
    (r"^conv1\.weight$", "backbone.body.stem.conv1.weight"),
    (r"^(res_conv1_bn|conv1_gn)\.", "backbone.body.stem.norm1."),
    (r"^res(\d)_(\d+)_branch", r"backbone.body.res\1.\2.branch"),
    (r"\.branch1\.", ".downsample.0."),
    (r"\.branch1_[bg]n\.", ".downsample.1."),
    *((rf"\.branch2{letter}\.", f".conv{n}.") for n, letter in enumerate("abc", start=1)),
    *((rf"\.branch2{letter}_[bg]n\.", f".norm{n}.") for n, letter in enumerate("abc", start=1)),
    (r"^fpn_inner_res(\d)_\d+_sum(?:_lateral)?", r"backbone.neck.lateral.\1"),
    (r"^fpn_res(\d)_\d+_sum", r"backbone.neck.output.\1"),
    *((rf"\.neck\.(\w+)\.{n}\.", rf".neck.\1.{n - 2}.0.") for n in range(2, 6)),
    *((rf"\.neck\.(\w+)\.{n}_gn\.", rf".neck.\1.{n - 2}.1.") for n in range(2, 6)),
    (r"^conv_rpn(?:_fpn\d)?\.", "rpn.head.conv."),
    (r"^rpn_(cls_logits|bbox_pred)(?:_fpn\d)?\.", r"rpn.head.\1."),
    (r"^(fc[67])\.", r"roi_heads.box.feature_extractor.\1."),
    (r"^fc([67])_gn\.", r"roi_heads.box.feature_extractor.norm\1."),
    (r"^(cls_score|bbox_pred)\.", r"roi_heads.box.predictor.\1."),
    (r"^(conv5_mask|mask_fcn_logits)\.", r"roi_heads.mask.predictor.\1."),
    (r"^kps_score_lowres\.", "roi_heads.keypoint.predictor.kps_score_lowres."),
    (r"^head_conv", "roi_heads.box.feature_extractor.conv"),
    (r"^_\[mask\]_fcn", "roi_heads.mask.feature_extractor.conv"),
    (r"^conv_fcn", "roi_heads.keypoint.feature_extractor.conv"),
    *((rf"_extractor\.conv{n}\.", f"_extractor.convs.{n - 1}.0.") for n in range(1, 9)),
    *((rf"_extractor\.conv{n}_gn\.", f"_extractor.convs.{n - 1}.1.") for n in range(1, 9)),
]  # fmt: skip

# Detectron keeps unused weights of the file it started from: a classifier's last layer, and biases
# before a norm. kps_score is an interpolation that it implements as a convolution.
_CAFFE2_UNUSED = (
    r"_momentum$|^lr$|^weight_order$|^(fc1000|pred)_[wb]$"
    r"|^(conv1|res\d_\d+_branch\d[abc]?)_b$|^kps_score_[wb]$"
)


def _adapt_caffe2(state: StateDict, raw: RawStateDict) -> StateDict:
    c4 = "roi_heads.box.feature_extractor.fc6.weight" not in state
    if c4 and "roi_heads.box.predictor.cls_score.weight" in state:
        # The last stage belongs to the box head, which its name does not show.
        stage, head = r"^backbone\.body\.res5\.", "roi_heads.box.feature_extractor.res5."
        state = {re.sub(stage, head, name): value for name, value in state.items()}
    if "conv1_gn_s" in raw:
        return state
    # Mean 0 and variance 1, where batch statistics are folded into the scales.
    for name, value in list(state.items()):
        layer, _, leaf = name.rpartition(".")
        if leaf == "weight" and re.search(r"\.(res\d\.\d+|stem)\.(norm\d|downsample\.1)$", layer):
            state.setdefault(f"{layer}.running_mean", torch.zeros_like(value))
            state.setdefault(f"{layer}.running_var", torch.ones_like(value))
    return state


CAFFE2 = CheckpointSource(
    names=r"^conv1_w$",
    convention="maskrcnn-benchmark",
    rules=_CAFFE2_RULES,
    unused=_CAFFE2_UNUSED,
    adapt=_adapt_caffe2,
    configure=_configure,
)
