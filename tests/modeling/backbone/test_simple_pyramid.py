from functools import partial

import torch
from torch.nn import functional as F

from detlite.modeling.backbone.simple_pyramid import SimpleFeaturePyramid
from detlite.modeling.layers.norm import LayerNorm2d


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
