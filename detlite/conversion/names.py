"""What torchvision, detectron2, maskrcnn-benchmark and Caffe2 call the entries of a state dict.

A table is a list of (pattern, replacement); all are applied to a name, in order (`re.sub`).
"""

from __future__ import annotations

import re

Rules = list[tuple[str, str]]

# Entries that follow from the config, or that no model uses.
DROPPED = re.compile(
    r"(^|\.)(anchor_generator\..*|pixel_mean|pixel_std|lr|weight_order|fc\.(weight|bias)"
    r"|stem\.fc\.(weight|bias)|linear\.(weight|bias))$|_momentum$|^(fc1000|pred)_[wb]$"
    # Detectron keeps what a file that it started from held: biases under a norm. Its last
    # enlargement of keypoints is an interpolation written as a convolution.
    r"|^(conv1|res\d_\d+_branch\d[abc]?)_b$|^kps_score_[wb]$"
    # What a panoptic model of detectron2 has beside its instances.
    r"|^sem_seg_head\."
)

_STAGES = [(rf"\.layer{n}\.", f".res{n + 1}.") for n in range(1, 5)] + [
    (r"\.bn(\d)\.", r".norm\1."),
]

TORCHVISION: Rules = [
    # an ImageNet classifier is a body alone; timm's have the same names
    (r"^(conv1|bn1|layer\d)\.", r"backbone.body.\1."),
    (r"^backbone\.body\.(conv1|bn1)\.", r"backbone.body.stem.\1."),
    *_STAGES,
    # before version 0.13 the layers below stood alone, not as the first of a block
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
    (r"^roi_heads\.mask_head\.", "roi_heads.mask.feature_extractor.convs."),
    (r"^backbone\.fpn\.extra_blocks\.", "backbone.neck.top."),
    # before version 0.15 convolutions and ReLUs took turns
    *((rf"^(head\.\w+_head\.conv)\.{2 * n}\.(weight|bias)$", rf"\1.{n}.0.\2") for n in range(4)),
    (r"^head\.classification_head\.conv\.", "head.cls_tower."),
    (r"^head\.classification_head\.", "head."),
    (r"^head\.regression_head\.conv\.", "head.bbox_tower."),
    (r"^head\.regression_head\.bbox_reg\.", "head.bbox_pred."),
    # convolutions and ReLUs take turns
    *(
        (rf"^roi_heads\.keypoint_head\.{2 * n}\.",
         f"roi_heads.keypoint.feature_extractor.convs.{n}.0.")
        for n in range(8)
    ),
]  # fmt: skip

# From ours, for models that torchvision has.
TO_TORCHVISION: Rules = [
    (r"^backbone\.body\.stem\.(conv1|norm1)\.", r"backbone.body.\1."),
    *((rf"\.res{n + 1}\.", f".layer{n}.") for n in range(1, 5)),
    (r"^(backbone\.body\..*)\bnorm(\d)\.", r"\1bn\2."),
    (r"^backbone\.neck\.lateral\.", "backbone.fpn.inner_blocks."),
    (r"^backbone\.neck\.output\.", "backbone.fpn.layer_blocks."),
    (r"^rpn\.head\.conv\.", "rpn.head.conv.0.0."),
    *((rf"^rpn\.head\.more_convs\.{n - 1}\.", f"rpn.head.conv.{n}.0.") for n in range(1, 4)),
    (r"^roi_heads\.box\.feature_extractor\.convs\.", "roi_heads.box_head."),
    (r"^roi_heads\.(box|mask|keypoint)\.predictor\.", r"roi_heads.\1_predictor."),
    (r"^roi_heads\.box\.feature_extractor\.", "roi_heads.box_head."),
    (r"^roi_heads\.mask\.feature_extractor\.convs\.", "roi_heads.mask_head."),
    (r"^backbone\.neck\.top\.", "backbone.fpn.extra_blocks."),
    (r"^head\.cls_tower\.", "head.classification_head.conv."),
    (r"^head\.cls_logits\.", "head.classification_head.cls_logits."),
    (r"^head\.bbox_tower\.", "head.regression_head.conv."),
    (r"^head\.bbox_pred\.", "head.regression_head.bbox_reg."),
    *(
        (rf"^roi_heads\.keypoint\.feature_extractor\.convs\.{n}\.0\.",
         f"roi_heads.keypoint_head.{2 * n}.")
        for n in range(8)
    ),
]  # fmt: skip

DETECTRON2: Rules = [
    # a body alone, that of a C4 model, that of a pyramid
    (r"^(stem|res\d)\.", r"backbone.\1."),
    (r"^backbone\.(stem|res\d)\.", r"backbone.body.\1."),
    (r"^backbone\.bottom_up\.", "backbone.body."),
    (r"((?:stem|res\d\.\d+)\.)conv(\d)\.norm\.", r"\1norm\2."),
    (r"\.conv2_offset\.", ".conv2.offset."),
    (r"\.shortcut\.weight$", ".downsample.0.weight"),
    (r"\.shortcut\.norm\.", ".downsample.1."),
    (r"(fpn_\w+\d|mask_fcn\d|conv_fcn\d|box_head\.(?:\d\.)?conv\d)\.norm\.", r"\1.1."),
    (
        r"(fpn_\w+\d|mask_fcn\d|conv_fcn\d|box_head\.(?:\d\.)?conv\d)\.(weight|bias)$",
        r"\1.0.\2",
    ),
    *(
        (rf"^roi_heads\.box_head\.conv{n}\.", f"roi_heads.box.feature_extractor.convs.{n - 1}.")
        for n in range(1, 9)
    ),
    *((rf"^backbone\.fpn_lateral{n}\.", f"backbone.neck.lateral.{n - 2}.") for n in range(2, 6)),
    *((rf"^backbone\.fpn_output{n}\.", f"backbone.neck.output.{n - 2}.") for n in range(2, 6)),
    (r"^backbone\.top_block\.", "backbone.neck.top."),
    *((rf"^head\.(cls|bbox)_subnet\.{2 * n}\.", rf"head.\1_tower.{n}.0.") for n in range(8)),
    (r"^head\.cls_score\.", "head.cls_logits."),
    (r"^proposal_generator\.rpn_head\.", "rpn.head."),
    (r"^rpn\.head\.objectness_logits\.", "rpn.head.cls_logits."),
    (r"^rpn\.head\.anchor_deltas\.", "rpn.head.bbox_pred."),
    # several convolutions are numbered
    (r"^rpn\.head\.conv\.conv0\.", "rpn.head.conv."),
    *((rf"^rpn\.head\.conv\.conv{n}\.", f"rpn.head.more_convs.{n - 1}.") for n in range(1, 4)),
    # the stages of a cascade are numbered
    (r"^roi_heads\.box_predictor\.(\d)\.", r"roi_heads.box.\1.predictor."),
    (r"^roi_heads\.box_head\.(\d)\.fc1\.", r"roi_heads.box.\1.feature_extractor.fc6."),
    (r"^roi_heads\.box_head\.(\d)\.fc2\.", r"roi_heads.box.\1.feature_extractor.fc7."),
    *(
        (rf"^roi_heads\.box_head\.(\d)\.conv{n}\.",
         rf"roi_heads.box.\1.feature_extractor.convs.{n - 1}.")
        for n in range(1, 9)
    ),
    (r"^roi_heads\.box_predictor\.", "roi_heads.box.predictor."),
    (r"^roi_heads\.res5\.", "roi_heads.box.feature_extractor.res5."),
    (r"^roi_heads\.box_head\.fc1\.", "roi_heads.box.feature_extractor.fc6."),
    (r"^roi_heads\.box_head\.fc2\.", "roi_heads.box.feature_extractor.fc7."),
    (r"^roi_heads\.mask_head\.deconv\.", "roi_heads.mask.predictor.conv5_mask."),
    (r"^roi_heads\.mask_head\.predictor\.", "roi_heads.mask.predictor.mask_fcn_logits."),
    (r"^roi_heads\.keypoint_head\.score_lowres\.",
     "roi_heads.keypoint.predictor.kps_score_lowres."),
    *(
        (rf"^roi_heads\.(mask|keypoint)_head\.\w+_?fcn{n}\.",
         rf"roi_heads.\1.feature_extractor.convs.{n - 1}.")
        for n in range(1, 9)
    ),
]  # fmt: skip

MASKRCNN_BENCHMARK: Rules = [
    *_STAGES,
    (r"^rpn\.head\.(?:0\.(?=head\.)|1\.)", "rpn.head."),  # FBNet's: a sequence
    (r"^(roi_heads\.\w+\.feature_extractor)\.head\.", r"\1."),  # the stage res5
    # a layer stands alone, or with its group norm as second
    (r"(fpn_(?:inner|layer)\d|mask_fcn\d|conv_fcn\d|fc[67])\.(weight|bias)$", r"\1.0.\2"),
    *((rf"^backbone\.fpn\.fpn_inner{n}\.", f"backbone.neck.lateral.{n - 1}.") for n in range(1, 5)),
    *((rf"^backbone\.fpn\.fpn_layer{n}\.", f"backbone.neck.output.{n - 1}.") for n in range(1, 5)),
    (r"^backbone\.fpn\.top_blocks\.", "backbone.neck.top."),
    *((rf"^rpn\.head\.(cls|bbox)_tower\.{2 * n}\.", rf"head.\1_tower.{n}.0.") for n in range(8)),
    # published heads of this kind have group norm: convolution, norm, ReLU
    *(
        (rf"\.xconvs\.{3 * n + k}\.", f".convs.{n}.{k}.")
        for n in range(8)
        for k in range(2)
    ),
    (r"\.fc([67])\.0\.", r".fc\1."),
    (r"\.fc([67])\.1\.", r".norm\1."),
    *((rf"\.(mask|conv)_fcn{n}\.", f".convs.{n - 1}.") for n in range(1, 9)),
]  # fmt: skip

CAFFE2: Rules = [
    (r"_w$", ".weight"),
    (r"_b$", ".bias"),
    (r"_(bn|gn)_(?:s|gamma)$", r"_\1.weight"),
    (r"_(bn|gn)(?:\.bias|_beta)$", r"_\1.bias"),
    # only where statistics are not folded into the scales
    (r"_bn_(?:running_mean|rm)$", "_bn.running_mean"),
    (r"_bn_(?:running_var|riv)$", "_bn.running_var"),
    (r"^conv1\.weight$", "backbone.body.stem.conv1.weight"),
    (r"^(res_conv1_bn|conv1_gn)\.", "backbone.body.stem.norm1."),
    (r"^res(\d)_(\d+)_branch1\.", r"backbone.body.res\1.\2.downsample.0."),
    (r"^res(\d)_(\d+)_branch1_[bg]n\.", r"backbone.body.res\1.\2.downsample.1."),
    *(
        rule
        for n, letter in enumerate("abc", start=1)
        for rule in (
            (rf"^res(\d)_(\d+)_branch2{letter}\.", rf"backbone.body.res\1.\2.conv{n}."),
            (rf"^res(\d)_(\d+)_branch2{letter}_[bg]n\.", rf"backbone.body.res\1.\2.norm{n}."),
        )
    ),
    (r"^fpn_inner_res(\d)_\d+_sum(?:_lateral)?\.", r"fpn_inner\1.0."),
    (r"^fpn_inner_res(\d)_\d+_sum(?:_lateral)?_gn\.", r"fpn_inner\1.1."),
    (r"^fpn_res(\d)_\d+_sum\.", r"fpn_layer\1.0."),
    (r"^fpn_res(\d)_\d+_sum_gn\.", r"fpn_layer\1.1."),
    *((rf"^fpn_inner{n}\.", f"backbone.neck.lateral.{n - 2}.") for n in range(2, 6)),
    *((rf"^fpn_layer{n}\.", f"backbone.neck.output.{n - 2}.") for n in range(2, 6)),
    (r"^conv_rpn(?:_fpn\d)?\.", "rpn.head.conv."),
    (r"^rpn_(cls_logits|bbox_pred)(?:_fpn\d)?\.", r"rpn.head.\1."),
    (r"^(fc[67])\.", r"roi_heads.box.feature_extractor.\1."),
    (r"^fc([67])_gn\.", r"roi_heads.box.feature_extractor.norm\1."),
    *(
        rule
        for n in range(1, 9)
        for rule in (
            (rf"^head_conv{n}\.", f"roi_heads.box.feature_extractor.convs.{n - 1}.0."),
            (rf"^head_conv{n}_gn\.", f"roi_heads.box.feature_extractor.convs.{n - 1}.1."),
        )
    ),
    (r"^(cls_score|bbox_pred)\.", r"roi_heads.box.predictor.\1."),
    (r"^(conv5_mask|mask_fcn_logits)\.", r"roi_heads.mask.predictor.\1."),
    (r"^kps_score_lowres\.", "roi_heads.keypoint.predictor.kps_score_lowres."),
    *(
        (rf"^_\[mask\]_fcn{n}\.", f"roi_heads.mask.feature_extractor.convs.{n - 1}.0.")
        for n in range(1, 9)
    ),
    *(
        (rf"^_\[mask\]_fcn{n}_gn\.", f"roi_heads.mask.feature_extractor.convs.{n - 1}.1.")
        for n in range(1, 9)
    ),
    *(
        (rf"^conv_fcn{n}\.", f"roi_heads.keypoint.feature_extractor.convs.{n - 1}.0.")
        for n in range(1, 9)
    ),
]  # fmt: skip

RULES = {
    "torchvision": TORCHVISION,
    "detectron2": DETECTRON2,
    "maskrcnn-benchmark": MASKRCNN_BENCHMARK,
    "caffe2": CAFFE2,
}

# Names that only one source has; in this order, as later ones are less particular.
_MARKS = {
    "detectron2": r"^(proposal_generator|backbone\.bottom_up|backbone\.stem|stem\.conv1)\.",
    "torchvision": r"^(backbone\.body\.)?layer1\.0\.conv1\.weight$",
    "maskrcnn-benchmark": (
        r"^(backbone\.body\.layer1|rpn\.head\.0\.head|roi_heads\.\w+\.feature_extractor\.head)\."
    ),
    "caffe2": r"^(conv1_w|res_conv1_bn_s|conv1_gn_s)$",
}


def detect_source(names: list[str]) -> str | None:
    """Which framework's names these are: a key of RULES, or None for our own and unknown ones."""
    if "backbone.body.stem.bn1.weight" in names:  # its stages are called as torchvision's
        return "maskrcnn-benchmark"
    for source, pattern in _MARKS.items():
        if any(re.match(pattern, name) for name in names):
            return source
    return None


def rename(name: str, rules: Rules) -> str:
    """The name after all rules."""
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name
