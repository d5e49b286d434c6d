import json

import pytest
import torch
from torch import nn
from torchvision.models.mobilenetv2 import InvertedResidual as TorchvisionBlock

from detlite.config import ConfigError
from detlite.modeling.backbone import build_backbone
from detlite.modeling.backbone.fbnet import BlockOptions, InvertedResidual, build_architecture
from detlite.modeling.build import build_model
from tests.builders import tiny_config
from tests.modeling.family import family_config


def definition(factor=1, **changes):
    """Return the default architecture in maskrcnn-benchmark's format, with `factor` times fewer
    channels."""
    config = {
        "first": [32, 2],
        "stages": [
            [[1, 16, 1, 1]], [[6, 24, 2, 2]], [[6, 32, 3, 2]], [[6, 64, 4, 2], [6, 96, 3, 1]],
            [[4, 160, 1, 2], [6, 160, 2, 1], [6, 240, 1, 1]], [[6, 96, 3, 1]],
            [[4, 160, 1, 1], [6, 160, 3, 1], [3, 80, 1, -2]],
        ],
        "last": [0, 0.0], "backbone": [0, 1, 2, 3], "rpn": [5], "bbox": [4], "mask": [6],
        **changes,
    }  # fmt: skip
    config["stages"] = [
        [[expansion, channels // factor, *rest] for expansion, channels, *rest in stage]
        for stage in config["stages"]
    ]
    operators = [["ir_k3"] * n for n in (1, 2, 3, 7, 4, 3, 5)]
    return json.dumps({"block_op_type": operators, "block_cfg": config})


def architecture(divisor=1, text=""):
    keys = ["MODEL.FBNET.WIDTH_DIVISOR", divisor, "MODEL.FBNET.ARCH_DEF", text]
    return build_architecture(tiny_config(*keys))


def block(kernel=3, channels=8, stride=1):
    return InvertedResidual(architecture(), BlockOptions("", kernel, 6, channels, stride), 8)


@pytest.mark.parametrize(("channels", "stride"), [(8, 1), (8, 2), (12, 1)])
def test_block_matches_mobilenet_v2(channels, stride):
    reference = TorchvisionBlock(8, channels, stride, 6).eval()
    reference.conv[1] = nn.Sequential(reference.conv[1][0])  # no norm and no ReLU
    ours = block(channels=channels, stride=stride).eval()
    parts = reference.conv[0], reference.conv[1], reference.conv[2:]
    for name, layers in zip(("pw", "dw", "pwl"), parts, strict=True):
        layer = ours.get_submodule(name)
        layer.conv.load_state_dict(layers[0].state_dict())
        if name != "dw":
            layers[1].running_mean.normal_(std=0.1)
            layer.bn.load_state_dict(layers[1].state_dict())
    x = torch.randn(2, 8, 9, 7)  # small enough not to be clipped by ReLU6
    torch.testing.assert_close(ours(x), reference(x))


@pytest.mark.parametrize(
    ("kernel", "stride", "size"), [(3, 2, (5, 4)), (5, -2, (18, 14)), (1, 1, (9, 7))]
)
def test_blocks(kernel, stride, size):
    layer = block(kernel, stride=stride)
    out = layer(torch.randn(2, 8, 9, 7))
    assert tuple(out.shape[-2:]) == size
    assert layer.pw.conv.out_channels == 48
    assert BlockOptions("", kernel, 6, 8, stride).output_side(9) == size[0]
    out.sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


@pytest.mark.parametrize(
    ("name", "channels", "blocks"),
    [("default", 96, 13), ("xirb16d_dsmask", 128, 13), ("mobilenet_v2", 96, 13),
     ("cham_v1a", 88, 20), ("cham_v2", 56, 20)],
)  # fmt: skip
def test_backbones(name, channels, blocks):
    with torch.device("meta"):
        backbone = build_backbone(
            tiny_config("MODEL.BACKBONE.CONV_BODY", "FBNet", "MODEL.FBNET.ARCH", name)
        )
    assert (backbone.out_channels, backbone.strides, backbone.pooled) == (channels, (16,), 1)
    assert len(backbone.body.stages) == blocks
    assert backbone(torch.zeros(1, 3, 64, 96, device="meta"))[0].shape == (1, channels, 4, 6)


def test_the_state_dict_has_the_names_of_maskrcnn_benchmark():
    """`test_family` trains the model."""
    names = build_model(family_config("fbnet, masks", tiny_config)).state_dict().keys()
    assert names >= {
        "backbone.body.first.conv.weight", "backbone.body.stages.xif3_6.pwl.bn.bias",
        "rpn.head.head.xif5_2.dw.conv.weight", "rpn.head.cls_logits.bias",
        "roi_heads.box.feature_extractor.blocks.xif4_0.pw.conv.weight",
        "roi_heads.mask.feature_extractor.blocks.xif6_4.pwl.conv.weight",
        "roi_heads.mask.predictor.mask_fcn_logits.weight",
    }  # fmt: skip


def test_head_with_a_last_layer():
    def extractor(*opts):
        keys = "MODEL.FBNET.ARCH_DEF", definition(4), *opts
        return build_model(
            family_config("fbnet", tiny_config, *keys)
        ).roi_heads.box.feature_extractor

    assert extractor().out_resolution == 3
    head = extractor("MODEL.FBNET.DET_HEAD_LAST_SCALE", -0.5)
    assert head.last.conv.in_channels == 60  # 240 / 4
    assert head.out_channels == 32  # half, rounded to a multiple of 4
    features, rois = [torch.randn(1, 24, 8, 8)], torch.tensor([[0.0, 0, 0, 99, 99]])
    assert head(features, rois).shape == (1, 32, 3, 3)
    text = definition(4, last=[40, 0.0])
    head = extractor("MODEL.FBNET.DET_HEAD_LAST_SCALE", 1.5, "MODEL.FBNET.ARCH_DEF", text)
    assert head.out_channels == head.last.conv.out_channels == 60


def test_custom_architecture():
    ours, expected = architecture(text=definition(kpts=[6])), architecture()
    for part in ("backbone", "rpn", "bbox", "mask"):
        assert ours.blocks(part) == expected.blocks(part)
    assert ours.blocks("kpts") == ours.blocks("mask")
    assert (ours.first, ours.last) == (expected.first, expected.last)


@pytest.mark.parametrize(
    ("text", "arch", "message"),
    [
        ("", "fbnet_z", "ARCH is 'fbnet_z', but must be one of default"),
        ("", "mobilenet_v2", "no stages for 'rpn', only for backbone, bbox"),
        ("{not json", "", "ARCH_DEF, .* is not JSON such as"),
        ('{"block_cfg": {}}', "", "ARCH_DEF, .* is not JSON such as"),
        (definition(rpn=[9]), "", "is not JSON such as"),
        (definition().replace("ir_k3", "ir_k3_se"), "", "the operators ir_k1"),
    ],
)
def test_invalid_configs(text, arch, message):
    opts = ["MODEL.FBNET.ARCH_DEF", text, "MODEL.FBNET.ARCH", arch]
    with pytest.raises(ConfigError, match=message):
        build_model(family_config("fbnet", tiny_config, *opts))
