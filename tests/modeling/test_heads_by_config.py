"""Backbones and heads that differ from the default by a few keys."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from detlite.config import load_config
from detlite.modeling.build import build_model

_NARROW_X101 = [
    "MODEL.BACKBONE.CONV_BODY", "R-101-FPN", "MODEL.RESNETS.STRIDE_IN_1X1", False,
    "MODEL.RESNETS.WIDTH_PER_GROUP", 1,
]  # fmt: skip


@pytest.mark.parametrize(
    "opts",
    [
        ["MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR", "FPNXconv1fcFeatureExtractor",
         "MODEL.ROI_BOX_HEAD.CONV_HEAD_DIM", 8, "MODEL.ROI_BOX_HEAD.NUM_STACKED_CONVS", 2],
        ["MODEL.RPN.NUM_CONVS", 2],
        ["MODEL.FPN.NORM", "BN", "MODEL.ROI_BOX_HEAD.NORM", "GN", "MODEL.ROI_MASK_HEAD.NORM", "BN"],
        ["MODEL.ROI_BOX_HEAD.NORM", "BN"],
        ["MODEL.FPN.NORM", "GN", "MODEL.ROI_BOX_HEAD.NORM", "GN",
         "MODEL.ROI_MASK_HEAD.NORM", "GN"],
        *(["MODEL.RESNETS.NORM", norm] for norm in ("FrozenBN", "BN", "SyncBN", "GN")),
        ["MODEL.BACKBONE.CONV_BODY", "R-34-FPN"],
        *([*_NARROW_X101, "MODEL.RESNETS.NUM_GROUPS", groups] for groups in (32, 64)),
    ],
    ids=["conv head", "two RPN convolutions", "norms", "batch norm of vectors", "group norm",
         "FrozenBN backbone", "BN backbone", "SyncBN backbone", "GN backbone",
         "R-34", "32 groups", "64 groups"],
)  # fmt: skip
def test_trains_and_detects(tiny_config, make_batch, opts):
    images, targets = make_batch(2, 1)
    model = build_model(tiny_config(*opts))
    sum(model(images, targets).values()).backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
    assert len(model.eval()(images)) == 2


def test_config_keys_of_the_conv_head(tiny_config):
    keys = "MODEL.ROI_BOX_HEAD."
    cfg = tiny_config(
        keys + "FEATURE_EXTRACTOR", "FPNXconv1fcFeatureExtractor", keys + "CONV_HEAD_DIM", 8,
        keys + "NUM_STACKED_CONVS", 3, keys + "NORM", "GN", keys + "DILATION", 2,
    )  # fmt: skip
    head = build_model(cfg).roi_heads.box.feature_extractor
    assert all(isinstance(block[1], nn.GroupNorm) for block in head.convs)
    assert len(head.convs) == 3
    assert {block[0].dilation for block in head.convs} == {(2, 2)}
    assert head.fc6.in_features == 8 * 7 * 7
    x = head([torch.randn(1, 16, 16, 16)] * 4, torch.tensor([[0.0, 0, 0, 30, 30]]))
    assert x.shape == (1, 32)


@pytest.mark.parametrize(("dilation", "stride"), [(1, 32), (2, 16)])
def test_c5_backbone(dilation, stride):
    cfg = load_config(
        None,
        ["MODEL.BACKBONE.CONV_BODY", "R-18-C5", "MODEL.RESNETS.RES5_DILATION", dilation,
         "MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR", "FPN2MLPFeatureExtractor",
         "MODEL.ROI_BOX_HEAD.PREDICTOR", "FPNPredictor", "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION", 7,
         "MODEL.DEVICE", "meta"],
    )  # fmt: skip
    with torch.device("meta"):
        model = build_model(cfg)
        (level,) = model.backbone(torch.zeros(1, 3, 64, 128))
    assert model.backbone.strides == (stride,)
    assert level.shape == (1, 512, 64 // stride, 128 // stride)


def test_dilated_c5_backbone_trains_and_detects(tiny_config, make_batch):
    cfg = tiny_config(
        "MODEL.BACKBONE.CONV_BODY", "R-18-C5", "MODEL.RESNETS.RES5_DILATION", 2,
        "MODEL.RESNETS.BACKBONE_OUT_CHANNELS", 128, "MODEL.MASK_ON", False,
    )  # fmt: skip
    images, targets = make_batch(2, 1)
    model = build_model(cfg)
    assert model.backbone.strides == (16,)
    sum(model(images, targets).values()).backward()
    assert model.backbone.body.res5[1].conv2.weight.grad.abs().sum() > 0
    assert len(model.eval()(images)) == 2


def test_p6_is_p5_subsampled(tiny_config):
    backbone = build_model(tiny_config()).backbone
    levels = backbone(torch.randn(1, 3, 96, 64))
    assert backbone.strides == (4, 8, 16, 32, 64)
    assert torch.equal(levels[4], torch.nn.functional.max_pool2d(levels[3], 1, stride=2))
