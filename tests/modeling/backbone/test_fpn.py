from functools import partial

import torch
from torch import nn
from torch.nn import functional as F
from torchvision.models.detection.backbone_utils import mobilenet_backbone
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from detlite.modeling.backbone.fpn import FPN
from detlite.modeling.backbone.mobilenet import MobileNetV3
from detlite.modeling.backbone.simple_pyramid import SimpleFeaturePyramid
from detlite.modeling.layers.norm import LayerNorm2d

CHANNELS = [4, 8, 16, 32]


def body_maps(height: int = 37, width: int = 50) -> list[torch.Tensor]:
    """Return maps of odd sizes, which the top-down path must match."""
    sizes = [(-(-height // s), -(-width // s)) for s in (1, 2, 4, 8)]
    return [torch.randn(2, c, *size) for c, size in zip(CHANNELS, sizes, strict=True)]


def test_levels_match_torchvision():
    reference = FeaturePyramidNetwork(CHANNELS, 6, LastLevelMaxPool())
    for parameter in reference.parameters():
        nn.init.normal_(parameter, std=0.2)  # including biases
    ours = FPN(CHANNELS, 6)
    state = reference.state_dict()
    ours.load_state_dict(
        {
            name: state[
                name.replace("lateral.", "inner_blocks.").replace("output.", "layer_blocks.")
            ]
            for name in ours.state_dict()
        }
    )
    maps = body_maps()
    expected = reference({str(i): x for i, x in enumerate(maps)})
    assert len(ours(maps)) == 5
    for level, other in zip(ours(maps), expected.values(), strict=True):
        torch.testing.assert_close(level, other)


def test_norm_replaces_the_bias():
    fpn = FPN(CHANNELS, 8, norm=lambda channels: nn.GroupNorm(2, channels), relu=True)
    convs = [m for m in fpn.modules() if isinstance(m, nn.Conv2d)]
    assert len(convs) == 8
    assert all(conv.bias is None for conv in convs)
    assert sum(isinstance(m, nn.GroupNorm) for m in fpn.modules()) == 8
    assert all((level >= 0).all() for level in fpn(body_maps()))


def normed(x: torch.Tensor, norm: torch.nn.Module) -> torch.Tensor:
    mean, variance = x.mean(1, keepdim=True), x.var(1, keepdim=True, correction=0)
    x = (x - mean) / (variance + 1e-6).sqrt()
    return x * norm.weight[:, None, None] + norm.bias[:, None, None]


def test_each_level_is_scaled_projected_and_normalized():
    neck = SimpleFeaturePyramid(16, 8, partial(LayerNorm2d, eps=1e-6)).double()
    for parameter in neck.parameters():
        parameter.data.normal_()
    x = torch.randn(1, 16, 4, 6, dtype=torch.float64)
    levels = neck([x])
    first, norm, _, last = neck.scale[0]
    expected = F.conv_transpose2d(x, first.weight, first.bias, stride=2)
    expected = F.gelu(normed(expected, norm))
    scaled = [
        F.conv_transpose2d(expected, last.weight, last.bias, stride=2),
        F.conv_transpose2d(x, neck.scale[1].weight, neck.scale[1].bias, stride=2),
        x,
        F.max_pool2d(x, 2),
    ]
    for level, expected in enumerate(scaled):
        for conv, norm in (neck.lateral[level], neck.output[level]):
            expected = normed(F.conv2d(expected, conv.weight, padding="same"), norm)
        torch.testing.assert_close(levels[level], expected)


def test_maps_equal_torchvision():
    torch.manual_seed(0)
    reference = mobilenet_backbone(
        backbone_name="mobilenet_v3_large", weights=None, fpn=True, norm_layer=nn.BatchNorm2d
    ).eval()
    body = MobileNetV3(nn.BatchNorm2d).eval()
    body.load_state_dict(reference.body.state_dict())
    image = torch.rand(2, 3, 64, 96)
    with torch.no_grad():
        expected, maps = reference.body(image), body(image)
    assert [m.shape[1] for m in maps] == list(MobileNetV3.channels)
    torch.testing.assert_close(maps, [expected["0"], expected["1"]])
