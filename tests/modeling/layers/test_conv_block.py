import pytest
import torch
from torch import nn

from detlite.apps.doctor.flops import count_cost
from detlite.config import load_config
from detlite.modeling.build import build_model
from detlite.modeling.layers.conv_block import conv_block

SMALL = [
    "MODEL.RPN.RPN_HEAD", "SeparableRPNHead", "MODEL.RPN.NUM_CONVS", 2,
    "MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR", "SeparableXconv1fcFeatureExtractor",
    "MODEL.ROI_BOX_HEAD.NUM_STACKED_CONVS", 2, "MODEL.ROI_BOX_HEAD.CONV_HEAD_DIM", 24,
    "MODEL.ROI_MASK_HEAD.FEATURE_EXTRACTOR", "SeparableConvFeatureExtractor",
    "MODEL.ROI_MASK_HEAD.PREDICTOR", "MaskRCNNConv1x1Predictor",
    "MODEL.ROI_MASK_HEAD.CONV_LAYERS", (16, 24), "MODEL.ROI_MASK_HEAD.RESOLUTION", 14,
]  # fmt: skip


def test_config_keys_of_separable_heads(tiny_config):
    model = build_model(
        tiny_config(*SMALL, "MODEL.ROI_BOX_HEAD.DILATION", 2, "MODEL.ROI_MASK_HEAD.DILATION", 3)
    )
    heads = model.roi_heads
    assert len(model.rpn.head.convs) == 2
    assert [block[1].out_channels for block in heads.box.feature_extractor.convs] == [24, 24]
    assert [block[1].out_channels for block in heads.mask.feature_extractor.convs] == [16, 24]
    assert {block[0].dilation for block in heads.box.feature_extractor.convs} == {(2, 2)}
    assert {block[0].dilation for block in heads.mask.feature_extractor.convs} == {(3, 3)}
    assert heads.box.feature_extractor.fc6.in_features == 24 * 7 * 7


def test_separable_block_is_the_product_of_its_convolutions():
    block = conv_block(4, 6, 3, relu=True, dilation=2, separable=True)
    depthwise, pointwise = block[0], block[1]
    plain = nn.Conv2d(4, 6, 3, padding=2, dilation=2)
    plain.weight.data = pointwise.weight.data * depthwise.weight.data[:, 0]
    plain.bias.data = pointwise.bias.data.normal_()
    x = torch.randn(2, 4, 9, 7)
    torch.testing.assert_close(block(x), plain(x).relu())


@pytest.mark.parametrize(
    ("config", "opts"),
    [("_base_/small_fpn.yaml", ["MODEL.MASK_ON", True]),
     ("nuclei_small_mask_rcnn_lite0_FPN.yaml", [])],
)  # fmt: skip
def test_small_models_need_at_most_fifteen_gflop(config, opts):
    pytest.importorskip("timm", reason="timm is not installed")
    whole, *parts = count_cost(load_config(config, opts), (512, 512), depth=1)
    assert whole.gflop <= 15
    assert {part.module for part in parts} == {"backbone", "rpn", "roi_heads"}


def test_separable_blocks_keep_the_scale_of_maps():
    """Otherwise gradients of a sequence of blocks would vanish initially."""
    x = torch.randn(2, 96, 16, 16)
    separable, plain = (
        nn.Sequential(*(conv_block(96, 96, 3, relu=True, separable=kind) for _ in range(4)))
        for kind in (True, False)
    )
    assert 0.5 < separable(x).std() / plain(x).std() < 2
