"""Convert the config of an mmdetection model, and its test pipeline.

Unknown settings that could change detections are rejected by name. Based on the docstrings and
defaults of mmdetection 2.28 and 3.3.
"""

import math
from collections.abc import Sequence
from typing import Any

from detlite.conversion.checkpoint_source import ConfigValues, StateDict, pixel_config, section
from detlite.conversion.infer_config import L1_RETINANET, infer_config

from .config_file import ConfigSection

_STRIDES = [4, 8, 16, 32, 64]  # of the levels of an R-CNN
# Steps that do not change the image.
_WITHOUT_EFFECT = "LoadAnnotations ImageToTensor DefaultFormatBundle Collect PackDetInputs"
_DIVISIBILITY = "DATALOADER.SIZE_DIVISIBILITY"


def model_config(tree: dict[str, Any], state: StateDict) -> tuple[ConfigValues, ConfigValues]:
    """Return the config inferred from the shapes, and the one in the config file (version 2 or 3).

    Raises:
        ValueError: the config has an unknown setting, or one that detlite does not have.
    """
    kinds = ("FasterRCNN", "MaskRCNN", "CascadeRCNN", "RetinaNet")
    model = ConfigSection(tree.get("model"), "model").check(*kinds)
    test = model if "test_cfg" in model else ConfigSection(tree, "the file")
    test = test.section("test_cfg")
    if model.kind == "RetinaNet":
        config = _retinanet(model, test)
    else:
        model.section("neck", "FPN", start_level=(0,), add_extra_convs=(False,))
        config = _rpn(model.section("rpn_head", "RPNHead"), test.section("rpn"))
        heads = model.section("roi_head", "StandardRoIHead", "CascadeRoIHead", num_stages=(3,))
        config |= _heads(heads, test.section("rcnn"))
        masks = "roi_heads.mask.more."
        more = {name.removeprefix(masks)[0] for name in state if name.startswith(masks)}
        config["MODEL.ROI_MASK_HEAD.NUM_HEADS"] = 1 + len(more)
    backbone = _backbone(model)
    pixels = _pipeline_config(tree, model)
    return infer_config(state, "ROIAlignV2", 0), backbone | config | pixels


def _backbone(model: ConfigSection) -> ConfigValues:
    backbone = model.section(
        "backbone", "ResNet", "ResNeXt", num_stages=(4,), strides=((1, 2, 2, 2),), norm_cfg=()
    )
    if "norm_cfg" in backbone:
        backbone.section("norm_cfg", "BN", "SyncBN", "MMSyncBN")
    norm = "FrozenBN" if backbone.get("norm_eval", True) else "BN"
    caffe = backbone.get("style", "pytorch") == "caffe"
    return {
        **section("MODEL.RESNETS", NORM=norm, STRIDE_IN_1X1=caffe),
        "MODEL.BACKBONE.FREEZE_CONV_BODY_AT": int(backbone.number("frozen_stages", -1)) + 1,
    }


def _check_sigmoid(head: ConfigSection) -> None:
    loss = ConfigSection(head.get("loss_cls"), f"{head.where}.loss_cls")
    if not loss.get("use_sigmoid", False):
        loss.reject("use_sigmoid", "True")


def _rpn(head: ConfigSection, test: ConfigSection) -> ConfigValues:
    if "loss_cls" in head:
        _check_sigmoid(head)
    if _box_coder_weights(head) != [1.0] * 4:
        head.section("bbox_coder").reject("target_stds", "1.0")
    limits = [key for key in ("nms_post", "max_num", "max_per_img") if key in test]
    max_proposals = min(int(test.number(key)) for key in limits or ["max_per_img"])
    return {
        **_anchor_config(head, "MODEL.RPN", _STRIDES),
        **_box_loss_config(head, "MODEL.RPN"),
        "MODEL.RPN.PRE_NMS_TOP_N_TEST": int(test.number("nms_pre")),
        "MODEL.RPN.POST_NMS_TOP_N_TEST": max_proposals,
        "MODEL.RPN.FPN_POST_NMS_TOP_N_TEST": max_proposals,
        "MODEL.RPN.FPN_POST_NMS_PER_BATCH": False,
        "MODEL.RPN.FPN_POST_NMS_TOP_N_TRAIN": max_proposals,
        "MODEL.RPN.NMS_THRESH": _nms_threshold(test),
        "MODEL.RPN.MIN_SIZE": max(test.number("min_bbox_size", 0), 0),
        "MODEL.RPN.STRADDLE_THRESH": -1,
    }


def _heads(heads: ConfigSection, test: ConfigSection) -> ConfigValues:
    cascade = heads.kind == "CascadeRoIHead"
    agnostic = (True,) if cascade else (False, True)
    kinds = ("Shared2FCBBoxHead", "Shared4Conv1FCBBoxHead")
    boxes = heads.sections("bbox_head")
    for head in boxes:
        head.check(*kinds, reg_class_agnostic=agnostic)
        if "loss_cls" in head:
            head.section("loss_cls", "CrossEntropyLoss", use_sigmoid=(False,))
    config: ConfigValues = {
        "MODEL.ROI_HEADS.SCORE_THRESH": test.number("score_thr"),
        "MODEL.ROI_HEADS.NMS": _nms_threshold(test),
        "MODEL.ROI_HEADS.DETECTIONS_PER_IMG": int(test.number("max_per_img")),
        **_pooler_config(heads, "bbox_roi_extractor", "MODEL.ROI_BOX_HEAD"),
        **_box_loss_config(boxes[0], "MODEL.ROI_BOX_HEAD"),
    }
    weights = [_box_coder_weights(head) for head in boxes]
    if cascade:
        config["MODEL.ROI_HEADS.CASCADE_BBOX_REG_WEIGHTS"] = weights
    else:
        config["MODEL.CLS_AGNOSTIC_BBOX_REG"] = bool(boxes[0].get("reg_class_agnostic", False))
        config["MODEL.ROI_HEADS.BBOX_REG_WEIGHTS"] = weights[0]
    if "mask_head" in heads:
        mask = "MODEL.ROI_MASK_HEAD"
        for head in heads.sections("mask_head"):
            head.check("FCNMaskHead")
        config |= _pooler_config(heads, "mask_roi_extractor", mask)
        config[f"{mask}.RESOLUTION"] = 2 * config[f"{mask}.POOLER_RESOLUTION"]
        config[f"{mask}.POSTPROCESS_MASKS_THRESHOLD"] = test.number("mask_thr_binary")
    return config


def _retinanet(model: ConfigSection, test: ConfigSection) -> ConfigValues:
    head = model.section("bbox_head", "RetinaHead")
    neck = model.section("neck", "FPN", start_level=(1,))
    if "start_level" not in neck:  # the default is 0
        neck.reject("start_level", "1")
    _check_sigmoid(head)
    source = neck.get("add_extra_convs", False)
    if source is True:
        source = "on_input" if neck.get("extra_convs_on_inputs", True) else "on_output"
    if source not in ("on_input", "on_output"):
        neck.reject("add_extra_convs", "on_input, on_output")
    test.check(min_bbox_size=(0,))
    return {
        **L1_RETINANET,
        **_box_loss_config(head, "MODEL.RETINANET"),
        **_anchor_config(head, "MODEL.RETINANET", [2 * stride for stride in _STRIDES]),
        "MODEL.RETINANET.BBOX_REG_WEIGHTS": _box_coder_weights(head),
        "MODEL.RETINANET.USE_C5": source == "on_input",
        "MODEL.RETINANET.P7_RELU": bool(neck.get("relu_before_extra_convs", False)),
        "MODEL.RETINANET.INFERENCE_TH": test.number("score_thr"),
        "MODEL.RETINANET.PRE_NMS_TOP_N": int(test.number("nms_pre")),
        "MODEL.RETINANET.NMS_TH": _nms_threshold(test),
        "MODEL.ROI_HEADS.DETECTIONS_PER_IMG": int(test.number("max_per_img")),
    }


def _anchor_config(head: ConfigSection, key: str, strides: list[int]) -> ConfigValues:
    """Return the anchors of a head, for the config section `key`."""
    if "anchor_generator" not in head:
        raise ValueError(
            f"its config has no {head.where}.anchor_generator, as before version 2.0: use the "
            "config of the same name from a later version"
        )
    generator = head.section("anchor_generator", "AnchorGenerator")
    if generator.numbers("strides") != strides:
        generator.reject("strides", str(strides))
    bases = generator.numbers("base_sizes", strides)
    octaves = int(generator.number("scales_per_octave", 1))
    in_octaves = "octave_base_scale" in generator
    scales = generator.numbers("octave_base_scale" if in_octaves else "scales")
    config: ConfigValues = {f"{key}.ASPECT_RATIOS": generator.numbers("ratios")}
    if key == "MODEL.RETINANET":
        config |= section(key, OCTAVE=2.0, SCALES_PER_OCTAVE=octaves)
    elif in_octaves:
        scales = [scale * 2 ** (step / octaves) for scale in scales for step in range(octaves)]
    sizes = [[base * scale for scale in scales] for base in bases]
    config[f"{key}.ANCHOR_SIZES"] = sizes if len(scales) > 1 else [row[0] for row in sizes]
    offset = generator.number("center_offset", 0.0)
    if offset and bases == strides:
        config["MODEL.CONVENTION_OVERRIDE"] = [f"anchor_offset={float(offset)}"]
    elif offset:
        generator.reject("center_offset", "0, or base_sizes that are the strides,")
    return config


def _box_coder_weights(head: ConfigSection) -> list[float]:
    """Return the weights of the box coder, 1 / target_stds."""
    coder = head.section("bbox_coder", "DeltaXYWHBBoxCoder")
    stds = coder.numbers("target_stds", [1.0] * 4)
    if len(stds) != 4 or min(stds) <= 0:
        coder.reject("target_stds", "4 numbers above 0")
    return [1.0 / std for std in stds]


def _box_loss_config(head: ConfigSection, key: str) -> ConfigValues:
    """Return the box loss of a head, if detlite has it, for the config section `key`."""
    known = {"L1Loss": "l1", "SmoothL1Loss": "smooth_l1", "GIoULoss": "giou"}
    loss = ConfigSection(head.get("loss_bbox") or {}, f"{head.where}.loss_bbox")
    if loss.kind not in known:
        return {}
    retinanet = key == "MODEL.RETINANET"
    config: ConfigValues = {f"{key}.BOX_LOSS": known[loss.kind]}
    if loss.kind == "SmoothL1Loss":
        beta = "BBOX_REG_BETA" if retinanet else "SMOOTH_L1_BETA"
        config[f"{key}.{beta}"] = float(loss.number("beta", 1.0))
    factor = float(loss.number("loss_weight", 1.0))
    if not retinanet:
        return config | {f"{key}.BOX_LOSS_WEIGHT": factor}
    if factor <= 0:
        loss.reject("loss_weight", "a number above 0")
    return config | {f"{key}.BBOX_REG_WEIGHT": 1 / factor}


def _pooler_config(heads: ConfigSection, extractor: str, key: str) -> ConfigValues:
    """Return the RoI pooler of a head, for the config section `key`."""
    layer = heads.section(extractor, "SingleRoIExtractor").section("roi_layer", "RoIAlign")
    size, samples = "output_size", "sampling_ratio"
    if "out_size" in layer:  # before version 2.3
        size, samples = "out_size", "sample_num"
    return section(
        key,
        POOLER_TYPE="ROIAlignV2" if layer.get("aligned", True) else "ROIAlign",
        POOLER_RESOLUTION=int(layer.number(size)),
        POOLER_SAMPLING_RATIO=int(layer.number(samples, 0)),
    )


def _nms_threshold(test: ConfigSection) -> float:
    """Return the IoU threshold of NMS."""
    if "nms_thr" in test:
        return float(test.number("nms_thr"))
    nms = test.section("nms", max_num=(-1, 0))
    if nms.kind not in ("nms", ""):
        nms.reject("type", "'nms'")
    return float(nms.number("iou_threshold" if "iou_threshold" in nms else "iou_thr"))


def _pipeline_config(tree: dict[str, Any], model: ConfigSection) -> ConfigValues:
    """Return the config of the test pipeline and, in version 3, of the data preprocessor."""
    config: ConfigValues = {_DIVISIBILITY: 1}
    for step in _pipeline(tree):
        if step.kind == "MultiScaleFlipAug":  # version 2 nests the steps that follow
            config |= _size(step.check(), "img_scale")
            for inner in step.sections("transforms"):
                if inner.kind != "RandomFlip":  # `flip` is checked above
                    config |= _step(inner)
        else:
            config |= _step(step)
    if "data_preprocessor" in model:
        config |= _preprocessor(model.section("data_preprocessor", "DetDataPreprocessor"), config)
    for key, step_name in (("INPUT.MIN_SIZE_TEST", "Resize"), ("INPUT.PIXEL_MEAN", "Normalize")):
        if key not in config:
            raise ValueError(f"its config has no {step_name} in its test pipeline")
    return config


def _pipeline(tree: dict[str, Any]) -> list[ConfigSection]:
    """Return the steps of the test pipeline, where version 3, version 2 or older files have it."""
    for name, key in (("test_dataloader", "dataset"), ("data", "test")):
        data = tree.get(name)
        inner = data.get(key) if isinstance(data, dict) else None
        if isinstance(inner, dict) and inner.get("pipeline") is not None:
            return ConfigSection(inner, f"{name}.{key}").sections("pipeline")
    return ConfigSection(tree, "the file").sections("test_pipeline")


def _step(step: ConfigSection) -> ConfigValues:
    if step.kind in _WITHOUT_EFFECT.split():
        return {}
    step.check("LoadImageFromFile", "Resize", "Normalize", "Pad")
    if step.kind == "Normalize":
        return _pixels(step.numbers("mean"), step.numbers("std"), step.get("to_rgb", True), step)
    if step.kind == "Pad":
        return {_DIVISIBILITY: int(step.number("size_divisor"))}
    if step.kind == "Resize" and not step.get("keep_ratio", False):
        step.reject("keep_ratio", "True")
    names = [key for key in ("scale", "img_scale") if key in step]
    return _size(step, names[0]) if names else {}


def _preprocessor(inputs: ConfigSection, steps: ConfigValues) -> ConfigValues:
    """Return the config of the data preprocessor, which runs after the pipeline's `steps`."""
    divisor = int(inputs.number("pad_size_divisor", 1))
    padded = {_DIVISIBILITY: math.lcm(steps[_DIVISIBILITY], divisor)}
    if "INPUT.PIXEL_MEAN" in steps:
        for key in ("mean", "std", "bgr_to_rgb"):
            if inputs.get(key):
                inputs.reject(key, "None, after a step Normalize,")
        return padded
    mean, std = inputs.numbers("mean", [0.0] * 3), inputs.numbers("std", [1.0] * 3)
    return padded | _pixels(mean, std, inputs.get("bgr_to_rgb", False), inputs)


def _pixels(
    mean: Sequence[float], std: Sequence[float], rgb: Any, inputs: ConfigSection
) -> ConfigValues:
    if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
        raise ValueError(f"its config says {inputs.where}: mean and std must be three numbers each")
    return pixel_config(mean, std, rgb)


def _size(step: ConfigSection, key: str) -> ConfigValues:
    value = step.get(key)
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], tuple):
        value = value[0]
    numbers = isinstance(value, (list, tuple)) and all(type(side) is int for side in value)
    if not numbers or len(value) != 2:
        step.reject(key, "one (long, short)")
    return {"INPUT.MIN_SIZE_TEST": min(value), "INPUT.MAX_SIZE_TEST": max(value)}
