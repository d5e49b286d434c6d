"""Conversion of mmdetection: layout, and the configs in checkpoints."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from detlite.checkpoint.files import read_checkpoint
from detlite.conversion.convert import convert, recognize
from detlite.errors import CheckpointError
from tests.conversion.mmdetection.recorded_outputs import (
    CLASSES,
    OUTPUTS,
    compare_recorded,
    config_text,
    recorded_configs,
    state_of,
)
from tests.conversion.recorded_state_dicts import config_of

CONFIGS = recorded_configs()
RECORDED = np.load(OUTPUTS)


def checkpoint_of(name: str, changes: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
    """Return a checkpoint with its config, whose keys, joined by dots, are changed."""
    tree = deepcopy(CONFIGS[name])
    for key, value in (changes or {}).items():
        *path, leaf = key.split(".")
        section: dict[str, Any] = tree
        for part in path:
            section = section[part]
        section[leaf] = value
    meta = {"cfg": config_text(tree), **meta}
    return {"meta": meta, "state_dict": state_of(name, RECORDED)}


def config(name: str, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the config of a converted checkpoint, see `checkpoint_of`."""
    return config_of(checkpoint_of(name, changes), "mmdetection")


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
def test_detections_equal_the_recorded_outputs(name):
    difference = compare_recorded(name, RECORDED)
    assert difference.count == 60
    difference.check(60, box=1e-3, score=1e-4, pixels=1e-3)


def test_config_of_version_2():
    older = config_text(as_version_2(CONFIGS["mask_rcnn_r50"]))
    content = checkpoint_of("mask_rcnn_r50", cfg=older)
    assert config_of(content, "mmdetection") == config("mask_rcnn_r50")


MASK, RETINA, CAFFE = "mask_rcnn_r50", "retinanet_r50", "faster_rcnn_r50_caffe"
PIXELS, PIPELINE = "model.data_preprocessor", "test_dataloader.dataset.pipeline"
LOSS, ANCHORS = "model.bbox_head.loss_bbox", "model.bbox_head.anchor_generator"


def steps(*more: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a pipeline that normalizes pixels."""
    resize = {"type": "Resize", "scale": (213, 128), "keep_ratio": True}
    norm = {"type": "Normalize", "mean": [3.0, 2, 1], "std": [1.0, 1, 1], "to_rgb": False}
    return [{"type": "LoadImageFromFile"}, resize, norm, *more]


def pad(divisor: int) -> dict[str, Any]:
    return {"type": "Pad", "size_divisor": divisor}


def preprocessor(**values: Any) -> dict[str, Any]:
    return {"type": "DetDataPreprocessor", **values}


def scales(**values: Any) -> dict[str, Any]:
    """Return a generator of anchors of the recorded RetinaNet with other scales."""
    unset = {"octave_base_scale": None, "scales_per_octave": None}
    return {**CONFIGS[RETINA]["model"]["bbox_head"]["anchor_generator"], **unset, **values}


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        (MASK, {}, {
            "MODEL.CONVENTION": "mmdetection", "MODEL.RESNETS.STRIDE_IN_1X1": False,
            "MODEL.ROI_HEADS.BBOX_REG_WEIGHTS": [10, 10, 5, 5],
            "INPUT.MIN_SIZE_TEST": 128, "INPUT.MAX_SIZE_TEST": 213, "INPUT.TO_BGR255": False,
        }),
        (CAFFE, {}, {
            "MODEL.RESNETS.STRIDE_IN_1X1": True, "INPUT.TO_BGR255": True,
            "INPUT.PIXEL_MEAN": [103.53, 116.28, 123.675], "INPUT.PIXEL_STD": [1, 1, 1],
        }),
        (MASK, {"model.roi_head.mask_roi_extractor.roi_layer.output_size": 7},
         {"MODEL.ROI_MASK_HEAD.POOLER_RESOLUTION": 7, "MODEL.ROI_MASK_HEAD.RESOLUTION": 14}),
        (MASK, {"model.test_cfg.rcnn.nms.max_num": -1}, {"MODEL.ROI_HEADS.NMS": 0.5}),
        (MASK, {"model.rpn_head.anchor_generator.scales": None,
                "model.rpn_head.anchor_generator.octave_base_scale": 2,
                "model.rpn_head.anchor_generator.scales_per_octave": 2},
         {"MODEL.RPN.ANCHOR_SIZES": [[s, s * 2**0.5] for s in (8, 16, 32, 64, 128)]}),
        (RETINA, {LOSS: {"type": "SmoothL1Loss", "beta": 0.11, "loss_weight": 2.0}},
         {"MODEL.RETINANET.BOX_LOSS": "smooth_l1", "MODEL.RETINANET.BBOX_REG_BETA": 0.11,
          "MODEL.RETINANET.BBOX_REG_WEIGHT": 0.5}),
        (RETINA, {LOSS: {"type": "GIoULoss", "loss_weight": 2.0}},
         {"MODEL.RETINANET.BOX_LOSS": "giou", "MODEL.RETINANET.BBOX_REG_WEIGHT": 0.5}),
        (RETINA, {ANCHORS: scales(scales=3)},
         {"MODEL.RETINANET.ANCHOR_SIZES": [24, 48, 96, 192, 384],
          "MODEL.RETINANET.OCTAVE": 2.0, "MODEL.RETINANET.SCALES_PER_OCTAVE": 1}),
        (MASK, {PIPELINE: steps(), PIXELS: preprocessor(pad_size_divisor=32)},
         {"INPUT.PIXEL_MEAN": [3, 2, 1], "INPUT.TO_BGR255": True,
          "DATALOADER.SIZE_DIVISIBILITY": 32}),
        (MASK, {PIPELINE: steps(), PIXELS: None}, {"DATALOADER.SIZE_DIVISIBILITY": 1}),
        (MASK, {PIPELINE: steps(pad(16)), PIXELS: None}, {"DATALOADER.SIZE_DIVISIBILITY": 16}),
        (MASK, {PIPELINE: steps(pad(16)), PIXELS: preprocessor(pad_size_divisor=32)},
         {"DATALOADER.SIZE_DIVISIBILITY": 32}),
    ],
)  # fmt: skip
def test_settings_are_converted(name, changes, expected):
    found = config(name, changes)
    assert {key: found[key] for key in expected} == expected


def test_anchor_offset():
    generator = scales(center_offset=0.5, scales=[2, 3, 5])
    content = checkpoint_of(RETINA, {ANCHORS: generator})
    assert convert(content, "mmdetection").override == ["anchor_offset=0.5"]
    found = config_of(content, "mmdetection")
    assert found["MODEL.RETINANET.ANCHOR_SIZES"][0] == [16, 24, 40]
    assert found["MODEL.RETINANET.SCALES_PER_OCTAVE"] == 1


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
)
def test_categories(meta, expected):
    categories = convert(checkpoint_of(RETINA, **meta), "mmdetection").categories
    assert [(category["id"], category["name"]) for category in categories] == expected


@pytest.mark.parametrize("name", ["a", "a_20200205-d4b0c5d6", "a_20200205_201425-d4b0c5d6"])
def test_config_file_next_to_the_checkpoint(name, saved, tmp_path):
    path = saved(checkpoint_of(RETINA, cfg=None, config="not = flat("), f"{name}.pth")
    message = r"looks like mmdetection's, but its config is not valid Python"
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(path)
    path = saved(checkpoint_of(RETINA, cfg=None), f"{name}.pth")
    with pytest.raises(CheckpointError, match=r"it has no config: copy .* to a\.py"):
        read_checkpoint(path)
    (tmp_path / "a.py").write_text(config_text(CONFIGS[RETINA]))
    assert "P7_RELU: false" in read_checkpoint(path).config


_HEAD, _TEST = "model.roi_head.bbox_head", "model.test_cfg.rcnn"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model.type", "HTC", "only FasterRCNN, MaskRCNN, CascadeRCNN, RetinaNet is converted"),
        ("model.backbone.type", "Res2Net", "only ResNet, ResNeXt"),
        ("model.backbone.deep_stem", True, r"deep_stem = True: only False"),
        ("model.backbone.dcn", {"type": "DCN"}, "backbone.dcn"),
        ("model.neck.start_level", 1, "only 0"),
        ("model.rpn_head.anchor_generator.type", "LegacyAnchorGenerator", "only AnchorGenerator"),
        ("model.rpn_head.anchor_generator", None, "before version 2.0"),
        ("model.rpn_head.anchor_generator.strides", [8, 16, 32, 64, 128], "strides"),
        ("model.rpn_head.loss_cls.use_sigmoid", False, "use_sigmoid"),
        (f"{_HEAD}.bbox_coder.target_means", [0.0, 0, 0, 1], "target_means"),
        (f"{_HEAD}.type", "DoubleConvFCBBoxHead", "only Shared2FCBBoxHead"),
        ("model.roi_head.bbox_roi_extractor.finest_scale", 28, "finest_scale = 28: only 56"),
        (f"{_TEST}.nms.type", "soft_nms", "only 'nms'"),
        ("model.test_cfg.rpn", {"nms_pre": 9}, "rpn.max_per_img = None, expected numbers"),
        (f"{_TEST}.nms.max_num", 100, "max_num = 100: only -1, 0 is converted"),
        (f"{_TEST}.score_thr", "low", "expected numbers"),
        (PIPELINE, steps(), "only None, after a step Normalize, is converted"),
        ("model.data_preprocessor.mean", [1.0], "three numbers"),
        ("model.data_preprocessor.pad_value", 114, "pad_value"),
        ("test_dataloader.dataset.pipeline", [], "no Resize"),
        ("test_dataloader.dataset.pipeline", [{"type": "Mosaic"}], "only LoadImageFromFile"),
        ("test_dataloader", None, r"no dict the file\.test_pipeline"),
    ],
)  # fmt: skip
def test_unknown_settings_are_rejected(key, value, message):
    with pytest.raises(ValueError, match=rf"looks like mmdetection's, but its config .*{message}"):
        config(MASK, {key: value})


def test_retinanet_must_state_where_its_pyramid_starts():
    """mmdetection's default is 0."""
    with pytest.raises(ValueError, match=r"neck\.start_level = None: only 1 is converted"):
        config(RETINA, {"model.neck.start_level": None})


@pytest.mark.parametrize("version", ["1.2.0", None])
def test_version_1_is_rejected(version):
    content = checkpoint_of(MASK, mmdet_version=version)
    if version is None:  # known by the names of its weights
        state = content["state_dict"]
        older = {name.removeprefix("roi_head."): value for name, value in state.items()}
        content["state_dict"] = older
        assert recognize(older) == "mmdetection"
    with pytest.raises(ValueError, match="is from mmdetection 1, with other conventions"):
        convert(content, "mmdetection")
