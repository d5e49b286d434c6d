"""Convert the config of an mmdetection model.

Unknown settings that could change detections are rejected by name. Based on the docstrings and
defaults of mmdetection 2.28 and 3.3.
"""

from typing import Any

from detlite.conversion.checkpoint_source import ConfigValues, StateDict
from detlite.conversion.infer_config import L1_RETINANET, infer_config

from .config_section import ConfigSection
from .head_config import (
    STRIDES,
    anchor_config,
    box_coder_weights,
    box_loss_config,
    nms_threshold,
    pooler_config,
)
from .pipeline_config import pipeline_config

_RETINANET_STRIDES = [8, 16, 32, 64, 128]


def model_config(tree: dict[str, Any], state: StateDict) -> tuple[ConfigValues, ConfigValues]:
    """Return the config of a model by its shapes, and by its config file of version 2 or 3.

    Raises:
        ValueError: the config has an unknown setting, or one that detlite does not have.
    """
    model = ConfigSection(tree.get("model"), "model")
    model.check(
        ("FasterRCNN", "MaskRCNN", "CascadeRCNN", "RetinaNet"),
        "data_preprocessor backbone neck rpn_head roi_head bbox_head train_cfg test_cfg pretrained",
    )
    if "test_cfg" in model:
        test = model.section("test_cfg")
    else:
        test = ConfigSection(tree.get("test_cfg"), "test_cfg")
    if model.kind == "RetinaNet":
        config = _retinanet(model, test)
    else:
        neck = model.section("neck")
        _check_neck(neck, 0)
        if neck.get("add_extra_convs", False):
            neck.reject("add_extra_convs", "False")
        config = _rpn(model.section("rpn_head"), test.section("rpn"))
        config |= _heads(model.section("roi_head"), test.section("rcnn"))
        masks = "roi_heads.mask.more."
        more = {name.removeprefix(masks)[0] for name in state if name.startswith(masks)}
        config["MODEL.ROI_MASK_HEAD.NUM_HEADS"] = 1 + len(more)
    backbone = _backbone(model.section("backbone"))
    pixels = pipeline_config(tree, model)
    return infer_config(state, "ROIAlignV2", 0), backbone | config | pixels


def _backbone(backbone: ConfigSection) -> ConfigValues:
    backbone.check(
        ("ResNet", "ResNeXt"),
        "depth groups base_width frozen_stages norm_cfg norm_eval pretrained with_cp "
        "zero_init_residual stem_channels base_channels",
        off="deep_stem avg_down conv_cfg dcn plugins",
        style=("pytorch", "caffe"),
        num_stages=(4,),
        out_indices=((0, 1, 2, 3), [0, 1, 2, 3]),
        in_channels=(3,),
        strides=((1, 2, 2, 2), [1, 2, 2, 2]),
        dilations=((1, 1, 1, 1), [1, 1, 1, 1]),
        stage_with_dcn=((False,) * 4, [False] * 4),
    )
    if "norm_cfg" in backbone:
        norm = backbone.section("norm_cfg")
        norm.check(("BN", "SyncBN", "MMSyncBN"), "requires_grad", eps=(1e-5,))
    return {
        "MODEL.RESNETS.NORM": "FrozenBN" if backbone.get("norm_eval", True) else "BN",
        "MODEL.RESNETS.STRIDE_IN_1X1": backbone.get("style", "pytorch") == "caffe",
        "MODEL.BACKBONE.FREEZE_CONV_BODY_AT": int(backbone.number("frozen_stages", -1)) + 1,
    }


def _check_neck(neck: ConfigSection, start: int) -> None:
    neck.check(
        ("FPN",),
        "in_channels out_channels start_level add_extra_convs extra_convs_on_inputs "
        "relu_before_extra_convs",
        off="no_norm_on_lateral conv_cfg norm_cfg act_cfg",
        num_outs=(5,),
        end_level=(-1, 3),
        upsample_cfg=({"mode": "nearest"},),
    )
    if neck.get("start_level", 0) != start:
        neck.reject("start_level", str(start))


def _rpn(head: ConfigSection, test: ConfigSection) -> ConfigValues:
    head.check(
        ("RPNHead",),
        "in_channels feat_channels num_convs anchor_generator bbox_coder reg_decoded_bbox "
        "train_cfg test_cfg",
        num_classes=(1,),
    )
    if "loss_cls" in head and not head.section("loss_cls").get("use_sigmoid", False):
        head.section("loss_cls").reject("use_sigmoid", "True")
    if box_coder_weights(head) != [1.0] * 4:
        head.section("bbox_coder").reject("target_stds", "1.0")
    test.check((), "nms_pre nms_post max_num max_per_img min_bbox_size nms nms_thr score_thr",
               nms_across_levels=(False,))  # fmt: skip
    limits = [key for key in ("nms_post", "max_num", "max_per_img") if key in test]
    max_proposals = min(int(test.number(key)) for key in limits or ["max_per_img"])
    return {
        **anchor_config(head, "MODEL.RPN", STRIDES),
        **box_loss_config(head, "MODEL.RPN"),
        "MODEL.RPN.PRE_NMS_TOP_N_TEST": int(test.number("nms_pre")),
        "MODEL.RPN.POST_NMS_TOP_N_TEST": max_proposals,
        "MODEL.RPN.FPN_POST_NMS_TOP_N_TEST": max_proposals,
        "MODEL.RPN.FPN_POST_NMS_PER_BATCH": False,
        "MODEL.RPN.FPN_POST_NMS_TOP_N_TRAIN": max_proposals,
        "MODEL.RPN.NMS_THRESH": nms_threshold(test),
        "MODEL.RPN.MIN_SIZE": max(test.number("min_bbox_size", 0), 0),
        "MODEL.RPN.STRADDLE_THRESH": -1,
    }


def _heads(heads: ConfigSection, test: ConfigSection) -> ConfigValues:
    heads.check(
        ("StandardRoIHead", "CascadeRoIHead"),
        "bbox_roi_extractor bbox_head mask_roi_extractor mask_head stage_loss_weights train_cfg "
        "test_cfg",
        off="shared_head",
        num_stages=(3,),
    )
    test.check((), "score_thr nms max_per_img mask_thr_binary")
    config: ConfigValues = {
        "MODEL.ROI_HEADS.SCORE_THRESH": test.number("score_thr"),
        "MODEL.ROI_HEADS.NMS": nms_threshold(test),
        "MODEL.ROI_HEADS.DETECTIONS_PER_IMG": int(test.number("max_per_img")),
        **pooler_config(heads.section("bbox_roi_extractor"), "MODEL.ROI_BOX_HEAD"),
    }
    boxes = heads.sections("bbox_head")
    for head in boxes:
        _check_box_head(head, agnostic=heads.kind == "CascadeRoIHead")
    config |= box_loss_config(boxes[0], "MODEL.ROI_BOX_HEAD")
    if heads.kind == "CascadeRoIHead":
        config["MODEL.ROI_HEADS.CASCADE_BBOX_REG_WEIGHTS"] = [
            box_coder_weights(head) for head in boxes
        ]
    else:
        config["MODEL.CLS_AGNOSTIC_BBOX_REG"] = bool(boxes[0].get("reg_class_agnostic", False))
        config["MODEL.ROI_HEADS.BBOX_REG_WEIGHTS"] = box_coder_weights(boxes[0])
    if "mask_head" in heads:
        pooled = pooler_config(heads.section("mask_roi_extractor"), "MODEL.ROI_MASK_HEAD")
        side = pooled["MODEL.ROI_MASK_HEAD.POOLER_RESOLUTION"]
        config |= {**pooled, "MODEL.ROI_MASK_HEAD.RESOLUTION": 2 * side}
        config["MODEL.ROI_MASK_HEAD.POSTPROCESS_MASKS_THRESHOLD"] = test.number("mask_thr_binary")
        for head in heads.sections("mask_head"):
            head.check(
                ("FCNMaskHead",),
                "num_convs in_channels conv_out_channels num_classes roi_feat_size",
                off="class_agnostic conv_cfg norm_cfg",
                conv_kernel_size=(3,),
                upsample_cfg=({"type": "deconv", "scale_factor": 2},),
                predictor_cfg=({"type": "Conv"},),
            )
    return config


def _check_box_head(head: ConfigSection, agnostic: bool) -> None:
    head.check(
        ("Shared2FCBBoxHead", "Shared4Conv1FCBBoxHead"),
        "in_channels conv_out_channels fc_out_channels roi_feat_size num_classes bbox_coder "
        "reg_decoded_bbox",
        off="with_avg_pool conv_cfg norm_cfg",
        reg_class_agnostic=(True,) if agnostic else (False, True),
        with_cls=(True,),
        with_reg=(True,),
        cls_predictor_cfg=({"type": "Linear"},),
        reg_predictor_cfg=({"type": "Linear"},),
    )
    if "loss_cls" in head:
        head.section("loss_cls").check(("CrossEntropyLoss",), "loss_weight", use_sigmoid=(False,))


def _retinanet(model: ConfigSection, test: ConfigSection) -> ConfigValues:
    head, neck = model.section("bbox_head"), model.section("neck")
    head.check(
        ("RetinaHead",),
        "num_classes in_channels feat_channels stacked_convs anchor_generator bbox_coder "
        "reg_decoded_bbox train_cfg test_cfg",
        off="conv_cfg norm_cfg",
    )
    if not head.section("loss_cls").get("use_sigmoid", False):
        head.section("loss_cls").reject("use_sigmoid", "True")
    _check_neck(neck, 1)
    source = neck.get("add_extra_convs", False)
    if source is True:
        source = "on_input" if neck.get("extra_convs_on_inputs", True) else "on_output"
    if source not in ("on_input", "on_output"):
        neck.reject("add_extra_convs", "on_input, on_output")
    test.check((), "nms_pre score_thr nms max_per_img", min_bbox_size=(0,))
    return {
        **L1_RETINANET,
        **box_loss_config(head, "MODEL.RETINANET"),
        **anchor_config(head, "MODEL.RETINANET", _RETINANET_STRIDES),
        "MODEL.RETINANET.BBOX_REG_WEIGHTS": box_coder_weights(head),
        "MODEL.RETINANET.USE_C5": source == "on_input",
        "MODEL.RETINANET.P7_RELU": bool(neck.get("relu_before_extra_convs", False)),
        "MODEL.RETINANET.INFERENCE_TH": test.number("score_thr"),
        "MODEL.RETINANET.PRE_NMS_TOP_N": int(test.number("nms_pre")),
        "MODEL.RETINANET.NMS_TH": nms_threshold(test),
        "MODEL.ROI_HEADS.DETECTIONS_PER_IMG": int(test.number("max_per_img")),
    }
