"""Counts of a model's parts, beside those made by hand."""

from __future__ import annotations

import pytest

from detlite.apps.doctor.flops import count_cost
from detlite.modeling import build_model


def costs(cfg, *args):
    return {row.part: row for row in count_cost(cfg, *args)}


def test_box_head_by_hand(tiny_config):
    cfg = tiny_config(
        "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM", 32, "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION", 5,
        "MODEL.RPN.FPN_POST_NMS_TOP_N_TEST", 40, "MODEL.ROI_HEADS.DETECTIONS_PER_IMG", 7,
    )  # fmt: skip
    channels, classes = build_model(cfg).backbone.out_channels, cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES
    found = costs(cfg)
    box = found["roi_heads.box"]
    inputs, outputs = (channels * 25, 32, 32), (32, 32, 5 * classes)
    assert box.parameters == sum((i + 1) * o for i, o in zip(inputs, outputs, strict=True))
    products = sum(i * o for i, o in zip(inputs, outputs, strict=True))
    assert box.gflop == pytest.approx(2 * 40 * products / 1e9)  # of 40 proposals
    assert box.activations == pytest.approx(40 * sum(outputs) / 1e6)


@pytest.mark.parametrize("detections", [3, 9])
def test_masks_are_of_every_detection(detections, tiny_config):
    cfg = tiny_config("MODEL.ROI_HEADS.DETECTIONS_PER_IMG", detections)
    one = costs(tiny_config("MODEL.ROI_HEADS.DETECTIONS_PER_IMG", 1))["roi_heads.mask"]
    assert costs(cfg)["roi_heads.mask"].gflop == pytest.approx(detections * one.gflop)


def test_parts_add_up_to_the_whole(tiny_config):
    found = costs(tiny_config())
    whole = found[""]
    parts = [row for row in found.values() if row.part and "." not in row.part]
    assert {row.part for row in parts} == {"backbone", "rpn", "roi_heads"}
    for name in ("parameters", "trained", "gflop", "activations"):
        total = sum(getattr(row, name) for row in parts)
        assert total == pytest.approx(getattr(whole, name)), name
    assert sum(row.share for row in parts) == pytest.approx(100)
    assert costs(tiny_config(), (960, 1280))[""].gflop == pytest.approx(whole.gflop)  # resized


def test_frozen_layers_are_not_trained(tiny_config):
    frozen = costs(tiny_config("MODEL.BACKBONE.FREEZE_CONV_BODY_AT", 2))["backbone.body"]
    free = costs(tiny_config("MODEL.BACKBONE.FREEZE_CONV_BODY_AT", 0))["backbone.body"]
    assert frozen.trained < free.trained == free.parameters == frozen.parameters
