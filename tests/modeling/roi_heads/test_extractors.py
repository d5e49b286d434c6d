import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from detlite.config import ConfigError, load_config
from detlite.modeling.backbone import build_backbone
from detlite.modeling.build import build_model
from detlite.modeling.layers.conv_block import conv_block
from detlite.modeling.roi_heads.extractors import BOX_EXTRACTORS
from tests.modeling.family import family_config


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("resolution", [7, 14])
def test_conv5_extractor_output_shape(tiny_config, dilation, resolution):
    cfg = tiny_config(
        "MODEL.RESNETS.RES5_DILATION", dilation,
        "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION", resolution, c4=True,
    )  # fmt: skip
    backbone = build_backbone(cfg)
    extractor = BOX_EXTRACTORS.get("ResNetConv5ROIFeatureExtractor", "")(cfg, backbone)
    x = extractor(backbone(torch.zeros(1, 3, 64, 64)), torch.tensor([[0.0, 0, 0, 40, 40]]))
    side = extractor.out_resolution
    assert x.shape == (1, extractor.out_channels, side, side)
    assert extractor.out_channels == 2 * backbone.out_channels


def test_conv5_extractor_needs_a_c4_backbone(tiny_config):
    key = "MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR"
    with pytest.raises(ConfigError, match=r"res5 to 64 channels, but R-18-FPN has 16: use a C4"):
        build_model(tiny_config(key, "ResNetConv5ROIFeatureExtractor"))


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


PREDICTS_28, PREDICTS_56 = (f"but the head predicts {side}" for side in (28, 56))
VECTORS = "FPN2MLPFeatureExtractor computes vectors, not maps"


@pytest.mark.parametrize(
    ("kind", "key", "value", "message"),
    [
        ("mask", "RESOLUTION", 14, f"RESOLUTION is 14, {PREDICTS_28}"),
        ("mask", "RESOLUTION", 30, f"RESOLUTION is 30, {PREDICTS_28}"),
        ("mask", "SHARE_BOX_FEATURE_EXTRACTOR", True, VECTORS),
        ("keypoint", "RESOLUTION", 14, f"RESOLUTION is 14, {PREDICTS_56}"),
        ("keypoint", "SHARE_BOX_FEATURE_EXTRACTOR", True, VECTORS),
    ],
)
def test_keys_that_do_not_fit(tiny_config, kind, key, value, message):
    with pytest.raises(ConfigError, match=message):
        build_model(family_config(kind, tiny_config, f"MODEL.ROI_{kind.upper()}_HEAD.{key}", value))


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


@pytest.mark.slow
def test_the_small_model_needs_at_most_fifteen_gflop():
    pytest.importorskip("timm", reason="timm is not installed")
    unsuppressed = ["MODEL.RPN.NMS_THRESH", 1.0, "MODEL.ROI_HEADS.NMS", 1.0]
    opts = ["MODEL.DEVICE", "cpu", "MODEL.ROI_HEADS.SCORE_THRESH", 0.0, *unsuppressed]
    model = build_model(load_config("nuclei_small_mask_rcnn_lite0_FPN.yaml", opts)).eval()
    for parameter in model.parameters():
        parameter.data.zero_()  # proposals equal the anchors
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model([torch.zeros(3, 512, 512)])
    assert 5e9 < counter.get_total_flops() <= 15e9


def test_separable_blocks_keep_the_scale_of_maps():
    """Otherwise gradients of a sequence of blocks would vanish initially."""
    x = torch.randn(2, 96, 16, 16)
    separable, plain = (
        nn.Sequential(*(conv_block(96, 96, 3, relu=True, separable=kind) for _ in range(4)))
        for kind in (True, False)
    )
    assert 0.5 < separable(x).std() / plain(x).std() < 2
