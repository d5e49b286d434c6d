"""Bodies and heads that differ from the basic ones by a few keys."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from detlite.config import load_config
from detlite.modeling.rcnn import build_model


@pytest.mark.parametrize(
    "opts",
    [
        ["MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR", "FPNXconv1fcFeatureExtractor",
         "MODEL.ROI_BOX_HEAD.CONV_HEAD_DIM", 8, "MODEL.ROI_BOX_HEAD.NUM_STACKED_CONVS", 2],
        ["MODEL.RPN.NUM_CONVS", 2],
        ["MODEL.FPN.NORM", "BN", "MODEL.ROI_BOX_HEAD.NORM", "GN", "MODEL.ROI_MASK_HEAD.NORM", "BN"],
        ["MODEL.ROI_BOX_HEAD.NORM", "BN"],
    ],
    ids=["conv head", "two RPN convolutions", "norms", "batch norm of vectors"],
)  # fmt: skip
def test_trains_and_detects(tiny_config, make_batch, opts):
    images, targets = make_batch(2, 1)
    model = build_model(tiny_config(*opts))
    sum(model(images, targets).values()).backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
    assert len(model.eval()(images)) == 2


def test_conv_head_by_its_keys(tiny_config):
    keys = "MODEL.ROI_BOX_HEAD."
    cfg = tiny_config(
        keys + "FEATURE_EXTRACTOR", "FPNXconv1fcFeatureExtractor", keys + "CONV_HEAD_DIM", 8,
        keys + "NUM_STACKED_CONVS", 3, keys + "USE_GN", True, keys + "DILATION", 2,
    )  # fmt: skip
    head = build_model(cfg).roi_heads.box.feature_extractor
    assert [type(block[1]) for block in head.convs] == [nn.GroupNorm] * 3
    assert {block[0].dilation for block in head.convs} == {(2, 2)}
    assert head.fc6.in_features == 8 * 7 * 7
    x = head([torch.randn(1, 16, 16, 16)] * 4, [torch.tensor([[0.0, 0, 30, 30]])])
    assert x.shape == (1, 32)


@pytest.mark.parametrize(("dilation", "stride"), [(1, 32), (2, 16)])
def test_c5_body(dilation, stride):
    cfg = load_config(
        None,
        ["MODEL.BACKBONE.CONV_BODY", "R-18-C5", "MODEL.RESNETS.RES5_DILATION", dilation,
         "MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR", "FPN2MLPFeatureExtractor",
         "MODEL.ROI_BOX_HEAD.PREDICTOR", "FPNPredictor", "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION", 7,
         "MODEL.DEVICE", "meta"],
    )  # fmt: skip
    assert (stride,) == cfg.MODEL.RPN.ANCHOR_STRIDE
    with torch.device("meta"):
        model = build_model(cfg)
        (level,) = model.backbone(torch.zeros(1, 3, 64, 128))
    assert level.shape == (1, 512, 64 // stride, 128 // stride)
