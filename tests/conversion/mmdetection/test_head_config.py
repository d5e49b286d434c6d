"""Legal but unusual words for anchors, suppression and pooling."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch

import detlite
from detlite.conversion import convert
from detlite.conversion.mmdetection.head_config import anchors, overlap
from detlite.conversion.mmdetection.python_config import ConfigSection
from tests.conversion.mmdetection.recorded_outputs import PLAIN, save, state_of
from tests.conversion.mmdetection.synthetic_models import CONFIGS, OUTPUTS, config_text


def anchors_of(key: str, strides: list[int], **generator: Any) -> dict[str, Any]:
    """The keys of anchors with these words."""
    words = {"type": "AnchorGenerator", "strides": strides, "ratios": [1.0], **generator}
    return anchors(ConfigSection({"anchor_generator": words}, "head"), key, strides)


@pytest.mark.parametrize("words", [{"octave_base_scale": 3, "scales_per_octave": 1}, {"scales": 3}])
def test_one_scale_by_either_name(words):
    assert anchors_of("MODEL.RETINANET", [8, 16], **words) == {
        "MODEL.RETINANET.ASPECT_RATIOS": [1.0],
        "MODEL.RETINANET.OCTAVE": 2.0,
        "MODEL.RETINANET.SCALES_PER_OCTAVE": 1,
        "MODEL.RETINANET.ANCHOR_SIZES": [24, 48],
    }


def test_an_rpn_states_the_sizes_of_an_octave():
    found = anchors_of("MODEL.RPN", [4, 8], octave_base_scale=2, scales_per_octave=2)
    assert found == {
        "MODEL.RPN.ASPECT_RATIOS": [1.0],
        "MODEL.RPN.ANCHOR_SIZES": [[8, 8 * 2**0.5], [16, 16 * 2**0.5]],
    }


@pytest.mark.parametrize(
    ("loss", "wanted"),
    [
        ({"type": "SmoothL1Loss", "beta": 0.11}, {"BOX_LOSS": "smooth_l1", "BBOX_REG_BETA": 0.11}),
        ({"type": "GIoULoss"}, {"BOX_LOSS": "giou"}),
    ],
)
def test_a_retinanet_is_trained_on_the_stated_loss(loss, wanted):
    tree = deepcopy(CONFIGS["retinanet_r50"])
    tree["model"]["bbox_head"]["loss_bbox"] = {**loss, "loss_weight": 2.0}
    state = state_of("retinanet_r50", np.load(OUTPUTS))
    content = {"meta": {"cfg": config_text(tree)}, "state_dict": state}
    found = convert(content, "mmdetection").config
    wanted = {**wanted, "BBOX_REG_WEIGHT": 0.5}
    assert {
        f"MODEL.RETINANET.{key}": value for key, value in wanted.items()
    }.items() <= found.items()


def test_a_limit_within_the_suppression_is_refused():
    nms = {"type": "nms", "iou_threshold": 0.5}
    assert overlap(ConfigSection({"nms": {**nms, "max_num": -1}}, "test_cfg")) == 0.5
    with pytest.raises(ValueError, match="max_num = 100: only -1, 0 is converted"):
        overlap(ConfigSection({"nms": {**nms, "max_num": 100}}, "test_cfg"))


def test_masks_are_twice_as_large_as_what_is_pooled(tmp_path):
    tree = deepcopy(CONFIGS["mask_rcnn_r50"])
    tree["model"]["roi_head"]["mask_roi_extractor"]["roi_layer"]["output_size"] = 7
    state = state_of("mask_rcnn_r50", np.load(OUTPUTS))
    path = save(tmp_path / "w.pth", state, cfg=config_text(tree))
    [found] = detlite.load_checkpoint(path, PLAIN).model.detect([torch.rand(3, 64, 64)])
    assert found.mask_probs is not None
    assert found.mask_probs.shape[1:] == (14, 14)
