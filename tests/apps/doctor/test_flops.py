"""Compare the counted costs of modules with costs computed by hand."""

import pytest

from detlite.apps.doctor.flops import count_cost
from detlite.modeling import build_model


def costs(cfg, *args):
    return {row.module: row for row in count_cost(cfg, *args)}


def test_box_head_by_hand(tiny_config):
    cfg = tiny_config(
        "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM", 32, "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION", 5,
        "MODEL.RPN.FPN_POST_NMS_TOP_N_TEST", 40, "MODEL.ROI_HEADS.DETECTIONS_PER_IMG", 7,
    )  # fmt: skip
    channels, classes = build_model(cfg).backbone.out_channels, cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES
    box = costs(cfg)["roi_heads.box"]
    inputs, outputs = (channels * 25, 32, 32), (32, 32, 5 * classes)
    assert box.parameters == sum((i + 1) * o for i, o in zip(inputs, outputs, strict=True))
    products = sum(i * o for i, o in zip(inputs, outputs, strict=True))
    assert box.gflop == pytest.approx(2 * 40 * products / 1e9)  # 40 proposals
    assert box.activations == pytest.approx(40 * sum(outputs) / 1e6)


def test_mask_head_runs_on_every_detection(tiny_config):
    one, five = (
        costs(tiny_config("MODEL.ROI_HEADS.DETECTIONS_PER_IMG", count))["roi_heads.mask"].gflop
        for count in (1, 5)
    )
    assert five == pytest.approx(5 * one)


def test_children_add_up_to_the_model(tiny_config):
    rows = costs(tiny_config())
    whole = rows[""]
    children = [row for row in rows.values() if row.module and "." not in row.module]
    assert {row.module for row in children} == {"backbone", "rpn", "roi_heads"}
    for name in ("parameters", "trained", "gflop", "activations"):
        total = sum(getattr(row, name) for row in children)
        assert total == pytest.approx(getattr(whole, name)), name
    assert sum(row.percent for row in children) == pytest.approx(100)
    assert costs(tiny_config(), (960, 1280))[""].gflop == pytest.approx(whole.gflop)


def test_frozen_layers_are_not_trained(tiny_config):
    body = costs(tiny_config("MODEL.BACKBONE.FREEZE_CONV_BODY_AT", 2))["backbone.body"]
    assert body.trained < body.parameters
