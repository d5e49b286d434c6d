import pytest
import torch
from torch import nn

from detlite.config import ConfigError
from detlite.modeling.backbone import build_backbone
from detlite.modeling.build import build_model
from detlite.modeling.roi_heads.extractors import BOX_EXTRACTORS


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


def test_conv_layers_and_dilation(tiny_config):
    prefix = "MODEL.ROI_MASK_HEAD."
    cfg = tiny_config(
        prefix + "CONV_LAYERS", (8, 12), prefix + "DILATION", 2, prefix + "NORM", "GN"
    )
    extractor = build_model(cfg).roi_heads.mask.feature_extractor
    convs = [m for m in extractor.modules() if isinstance(m, nn.Conv2d)]
    assert [(c.in_channels, c.out_channels, c.dilation) for c in convs] == [
        (16, 8, (2, 2)), (8, 12, (2, 2)),
    ]  # fmt: skip
    assert all(c.bias is None for c in convs)
    assert sum(isinstance(m, nn.GroupNorm) for m in extractor.modules()) == 2


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
