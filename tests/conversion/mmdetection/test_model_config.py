"""Less common settings of anchors, losses, NMS and poolers."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import detlite
from detlite.conversion.convert import convert
from detlite.conversion.mmdetection.config_file import ConfigSection
from detlite.conversion.mmdetection.model_config import _anchor_config, _nms_threshold
from tests.conversion.mmdetection.recorded_outputs import (
    OUTPUTS,
    PLAIN,
    config_text,
    recorded_configs,
    save,
    state_of,
)

CONFIGS = recorded_configs()


def anchors_of(key: str, strides: list[int], **generator: Any) -> dict[str, Any]:
    """Convert the settings of an anchor generator."""
    settings = {"type": "AnchorGenerator", "strides": strides, "ratios": [1.0], **generator}
    return _anchor_config(ConfigSection({"anchor_generator": settings}, "head"), key, strides)


@pytest.mark.parametrize(
    "settings", [{"octave_base_scale": 3, "scales_per_octave": 1}, {"scales": 3}]
)
def test_both_names_of_a_scale(settings):
    assert anchors_of("MODEL.RETINANET", [8, 16], **settings) == {
        "MODEL.RETINANET.ASPECT_RATIOS": [1.0],
        "MODEL.RETINANET.OCTAVE": 2.0,
        "MODEL.RETINANET.SCALES_PER_OCTAVE": 1,
        "MODEL.RETINANET.ANCHOR_SIZES": [24, 48],
    }


def test_octaves_of_an_rpn():
    config = anchors_of("MODEL.RPN", [4, 8], octave_base_scale=2, scales_per_octave=2)
    assert config == {
        "MODEL.RPN.ASPECT_RATIOS": [1.0],
        "MODEL.RPN.ANCHOR_SIZES": [[8, 8 * 2**0.5], [16, 16 * 2**0.5]],
    }


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ({"type": "SmoothL1Loss", "beta": 0.11}, {"BOX_LOSS": "smooth_l1", "BBOX_REG_BETA": 0.11}),
        ({"type": "GIoULoss"}, {"BOX_LOSS": "giou"}),
    ],
)
def test_box_loss_of_a_retinanet(loss, expected):
    tree = deepcopy(CONFIGS["retinanet_r50"])
    tree["model"]["bbox_head"]["loss_bbox"] = {**loss, "loss_weight": 2.0}
    state = state_of("retinanet_r50", np.load(OUTPUTS))
    content = {"meta": {"cfg": config_text(tree)}, "state_dict": state}
    config = yaml.safe_load(convert(content, "mmdetection").config)
    expected = {**expected, "BBOX_REG_WEIGHT": 0.5}
    assert {
        f"MODEL.RETINANET.{key}": value for key, value in expected.items()
    }.items() <= config.items()


def test_limit_of_nms_is_rejected():
    nms = {"type": "nms", "iou_threshold": 0.5}
    assert _nms_threshold(ConfigSection({"nms": {**nms, "max_num": -1}}, "test_cfg")) == 0.5
    with pytest.raises(ValueError, match="max_num = 100: only -1, 0 is converted"):
        _nms_threshold(ConfigSection({"nms": {**nms, "max_num": 100}}, "test_cfg"))


def test_mask_resolution(tmp_path):
    tree = deepcopy(CONFIGS["mask_rcnn_r50"])
    tree["model"]["roi_head"]["mask_roi_extractor"]["roi_layer"]["output_size"] = 7
    state = state_of("mask_rcnn_r50", np.load(OUTPUTS))
    path = save(tmp_path / "w.pth", state, cfg=config_text(tree))
    [detections] = detlite.load_checkpoint(path, PLAIN).model.detect([torch.rand(3, 64, 64)])
    assert detections.mask_probs is not None
    assert detections.mask_probs.shape[1:] == (14, 14)
