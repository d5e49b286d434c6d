"""Backbones and heads that differ from the default by a few keys."""

import pytest
import torch

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


def test_p6_is_p5_subsampled(tiny_config):
    backbone = build_model(tiny_config()).backbone
    levels = backbone(torch.randn(1, 3, 96, 64))
    assert backbone.strides == (4, 8, 16, 32, 64)
    assert torch.equal(levels[4], torch.nn.functional.max_pool2d(levels[3], 1, stride=2))
