"""Conversion of mmdetection: layout, and the configs in checkpoints."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import detlite
from detlite.checkpoint.files import read_checkpoint
from detlite.conversion.checkpoint_source import recognize
from detlite.conversion.convert import convert
from detlite.errors import CheckpointError
from tests.conversion.mmdetection.recorded_outputs import (
    CLASSES,
    OUTPUTS,
    PLAIN,
    compare_recorded,
    config_text,
    recorded_configs,
    save,
    state_of,
)

CONFIGS = recorded_configs()


@pytest.fixture(scope="module")
def recorded():
    """The recorded outputs of mmdetection."""
    return np.load(OUTPUTS)


def config_of(state: dict[str, torch.Tensor], tree: dict[str, Any]) -> dict[str, Any]:
    """Convert a checkpoint with this config, and return its config."""
    content = {"meta": {"cfg": config_text(tree)}, "state_dict": state}
    return yaml.safe_load(convert(content, "mmdetection").config)


def as_version_2(tree: dict[str, Any]) -> dict[str, Any]:
    """Convert a config to version 2.0: normalization in the pipeline, older names in test_cfg."""
    tree = deepcopy(tree)
    model, (_, resize, *_) = tree["model"], tree.pop("test_dataloader")["dataset"]["pipeline"]
    pixels = model.pop("data_preprocessor")
    norm = {"mean": pixels["mean"], "std": pixels["std"], "to_rgb": pixels["bgr_to_rgb"]}
    steps = [
        {"type": "Resize", "keep_ratio": True},
        {"type": "RandomFlip"},
        {"type": "Normalize", **norm},
        {"type": "Pad", "size_divisor": 32},
        {"type": "ImageToTensor", "keys": ["img"]},
        {"type": "Collect", "keys": ["img"]},
    ]
    views = {"type": "MultiScaleFlipAug", "img_scale": resize["scale"], "flip": False}
    pipeline = [{"type": "LoadImageFromFile"}, {**views, "transforms": steps}]
    test = model.pop("test_cfg")
    test["rpn"] = {
        "nms_across_levels": False, "nms_pre": 400, "nms_post": 200, "max_num": 200,
        "nms_thr": 0.7, "min_bbox_size": 0,
    }  # fmt: skip
    test["rcnn"]["nms"] = {"type": "nms", "iou_thr": 0.5}
    for head in ("bbox", "mask"):
        layer = model["roi_head"][f"{head}_roi_extractor"]["roi_layer"]
        layer["out_size"], layer["sample_num"] = (
            layer.pop("output_size"),
            layer.pop("sampling_ratio"),
        )
    return {**tree, "test_cfg": test, "data": {"test": {"pipeline": pipeline}}}


@pytest.mark.parametrize("name", CONFIGS)
def test_detections_equal_the_recorded_outputs(name, recorded):
    difference = compare_recorded(name, recorded)
    assert difference.count == 60
    difference.check(60, box=1e-3, score=1e-4, pixels=1e-3)


def test_config_of_version_2(recorded):
    state, tree = state_of("mask_rcnn_r50", recorded), CONFIGS["mask_rcnn_r50"]
    config = config_of(state, tree)
    assert config_of(state, as_version_2(tree)) == config
    assert {
        "MODEL.CONVENTION": "mmdetection",
        "MODEL.BACKBONE.CONV_BODY": "R-50-FPN",
        "MODEL.RESNETS.NORM": "FrozenBN",
        "MODEL.RESNETS.STRIDE_IN_1X1": False,
        "MODEL.RPN.ANCHOR_SIZES": [8, 16, 32, 64, 128],
        "MODEL.RPN.PRE_NMS_TOP_N_TEST": 400,
        "MODEL.RPN.FPN_POST_NMS_TOP_N_TEST": 200,
        "MODEL.RPN.NMS_THRESH": 0.7,
        "MODEL.ROI_HEADS.SCORE_THRESH": 0.15,
        "MODEL.ROI_HEADS.NMS": 0.5,
        "MODEL.ROI_HEADS.DETECTIONS_PER_IMG": 30,
        "MODEL.ROI_BOX_HEAD.NUM_CLASSES": 5,
        "MODEL.ROI_BOX_HEAD.POOLER_TYPE": "ROIAlignV2",
        "MODEL.ROI_BOX_HEAD.POOLER_SAMPLING_RATIO": 0,
        "MODEL.ROI_MASK_HEAD.POOLER_RESOLUTION": 14,
        "MODEL.ROI_MASK_HEAD.NUM_HEADS": 1,
        "INPUT.MIN_SIZE_TEST": 128,
        "INPUT.MAX_SIZE_TEST": 213,
        "INPUT.TO_BGR255": False,
        "DATALOADER.SIZE_DIVISIBILITY": 32,
    }.items() <= config.items()
    assert config["INPUT.PIXEL_MEAN"] == pytest.approx([0.485, 0.456, 0.406], abs=1e-6)
    assert config["MODEL.ROI_HEADS.BBOX_REG_WEIGHTS"] == [10, 10, 5, 5]


def test_caffe_style(recorded):
    name = "faster_rcnn_r50_caffe"
    config = config_of(state_of(name, recorded), CONFIGS[name])
    assert config["MODEL.RESNETS.STRIDE_IN_1X1"] is True
    assert config["INPUT.TO_BGR255"] is True
    assert config["INPUT.PIXEL_MEAN"] == [103.53, 116.28, 123.675]
    assert config["INPUT.PIXEL_STD"] == [1, 1, 1]


def test_layout(recorded, tmp_path):
    name = "cascade_mask_rcnn_r50"
    state = state_of(name, recorded)
    path = save(tmp_path / "w.pth", state, cfg=config_text(CONFIGS[name]))
    converted = detlite.load_checkpoint(path, PLAIN).model.state_dict()
    box, mask = "roi_heads.box.2.", "roi_heads.mask.more.1."
    for original, own in {
        "roi_head.bbox_head.2.shared_fcs.1.bias": f"{box}feature_extractor.fc7.bias",
        "roi_head.mask_head.2.convs.3.conv.bias": f"{mask}feature_extractor.convs.3.0.bias",
        "roi_head.mask_head.0.upsample.weight": "roi_heads.mask.predictor.conv5_mask.weight",
        "neck.lateral_convs.3.conv.weight": "backbone.neck.lateral.3.0.weight",
    }.items():
        assert torch.equal(converted[own], state[original]), original
    scores = state["roi_head.bbox_head.2.fc_cls.bias"]  # the background is last
    assert torch.equal(converted[f"{box}predictor.cls_score.bias"], scores.roll(1))
    masks = state["roi_head.mask_head.2.conv_logits.bias"]
    assert torch.equal(converted[f"{mask}predictor.mask_fcn_logits.bias"][1:], masks)


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        (
            {"dataset_meta": {"classes": CLASSES}},
            [(47, "cup"), (1, "person"), (16, "bird"), (38, "kite")],
        ),
        ({"CLASSES": ["cup", "a", "b", "c"]}, [(1, "cup"), (2, "a"), (3, "b"), (4, "c")]),
        ({"dataset_meta": {"CLASSES": CLASSES[:2]}}, [(n, f"class {n}") for n in range(1, 5)]),
        ({}, [(n, f"class {n}") for n in range(1, 5)]),
    ],
)  # fmt: skip
def test_categories(meta, expected, recorded):
    tree = config_text(CONFIGS["retinanet_r50"])
    content = {"meta": {"cfg": tree, **meta}, "state_dict": state_of("retinanet_r50", recorded)}
    categories = convert(content, "mmdetection").categories
    assert [(category["id"], category["name"]) for category in categories] == expected


@pytest.mark.parametrize("name", ["a", "a_20200205-d4b0c5d6", "a_20200205_201425-d4b0c5d6"])
def test_config_file_next_to_the_checkpoint(name, recorded, tmp_path):
    path = save(tmp_path / f"{name}.pth", state_of("retinanet_r50", recorded), config="not = flat(")
    with pytest.raises(
        CheckpointError, match=r"looks like mmdetection's, but its config is not valid Python"
    ):
        read_checkpoint(path)
    (tmp_path / "a.py").write_text(config_text(CONFIGS["retinanet_r50"]))
    assert "P7_RELU: false" in read_checkpoint(path).config


def test_no_config(recorded, tmp_path):
    path = save(tmp_path / "b_20200205-d4b0c5d6.pth", state_of("retinanet_r50", recorded))
    with pytest.raises(CheckpointError, match=r"it has no config: copy .* to b\.py"):
        read_checkpoint(path)


_HEAD, _TEST = "model.roi_head.bbox_head", "model.test_cfg.rcnn"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model.type", "HTC", "only FasterRCNN, MaskRCNN, CascadeRCNN, RetinaNet is converted"),
        ("model.backbone.type", "Res2Net", "only ResNet, ResNeXt"),
        ("model.backbone.deep_stem", True, r"deep_stem = True: only False"),
        ("model.backbone.dcn", {"type": "DCN"}, "backbone.dcn"),
        ("model.neck.type", "PAFPN", "only FPN"),
        ("model.neck.start_level", 1, "only 0"),
        ("model.rpn_head.anchor_generator.type", "LegacyAnchorGenerator", "only AnchorGenerator"),
        ("model.rpn_head.anchor_generator", None, "before version 2.0"),
        ("model.rpn_head.anchor_generator.strides", [8, 16, 32, 64, 128], "strides"),
        ("model.rpn_head.loss_cls.use_sigmoid", False, "use_sigmoid"),
        (f"{_HEAD}.bbox_coder.target_means", [0.0, 0, 0, 1], "target_means"),
        (f"{_HEAD}.bbox_coder.add_ctr_clamp", True, "add_ctr_clamp"),
        (f"{_HEAD}.type", "DoubleConvFCBBoxHead", "only Shared2FCBBoxHead"),
        ("model.roi_head.bbox_roi_extractor.finest_scale", 28, "finest_scale = 28: only 56"),
        ("model.roi_head.mask_head.class_agnostic", True, "class_agnostic"),
        (f"{_TEST}.nms.type", "soft_nms", "only 'nms'"),
        ("model.test_cfg.rpn", {"nms_pre": 9}, "rpn.max_per_img = None, expected numbers"),
        (f"{_TEST}.score_thr", "low", "expected numbers"),
        ("model.data_preprocessor.mean", [1.0], "three numbers"),
        ("model.data_preprocessor.pad_value", 114, "pad_value"),
        ("test_dataloader.dataset.pipeline", [], "no Resize"),
        ("test_dataloader.dataset.pipeline", [{"type": "Mosaic"}], "only LoadImageFromFile"),
        ("test_dataloader", None, r"no dict the file\.test_pipeline"),
    ],
)  # fmt: skip
def test_unknown_settings_are_rejected(key, value, message, recorded):
    tree = deepcopy(CONFIGS["mask_rcnn_r50"])
    *path, leaf = key.split(".")
    section: dict[str, Any] = tree
    for name in path:
        section = section[name]
    section[leaf] = value
    state = dict.fromkeys(state_of("mask_rcnn_r50", recorded), torch.zeros(1))
    with pytest.raises(ValueError, match=rf"looks like mmdetection's, but its config .*{message}"):
        config_of(state, tree)


def test_retinanet_must_state_where_its_pyramid_starts(recorded):
    tree = deepcopy(CONFIGS["retinanet_r50"])
    del tree["model"]["neck"]["start_level"]  # mmdetection's default is 0
    with pytest.raises(ValueError, match=r"neck\.start_level = None: only 1 is converted"):
        config_of(state_of("retinanet_r50", recorded), tree)


def test_version_1_is_rejected(recorded):
    state = state_of("mask_rcnn_r50", recorded)
    older = {name.removeprefix("roi_head."): value for name, value in state.items()}
    assert recognize(older) == "mmdetection"
    with pytest.raises(ValueError, match="is from mmdetection 1, with other conventions"):
        config_of(older, CONFIGS["mask_rcnn_r50"])
    content = {"meta": {"mmdet_version": "1.2.0", "config": ""}, "state_dict": state}
    with pytest.raises(ValueError, match="from mmdetection 1"):
        convert(content, "mmdetection")


def test_anchor_offset(recorded):
    tree = deepcopy(CONFIGS["retinanet_r50"])
    generator = tree["model"]["bbox_head"]["anchor_generator"]
    generator |= {"center_offset": 0.5, "octave_base_scale": None, "scales_per_octave": None,
                  "scales": [2, 3, 5]}  # fmt: skip
    state = state_of("retinanet_r50", recorded)
    converted = convert({"meta": {"cfg": config_text(tree)}, "state_dict": state}, "mmdetection")
    config = yaml.safe_load(converted.config)
    assert converted.override == ["anchor_offset=0.5"]
    assert config["MODEL.RETINANET.ANCHOR_SIZES"][0] == [16, 24, 40]
    assert config["MODEL.RETINANET.SCALES_PER_OCTAVE"] == 1
