import torch
from torch import nn
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from detlite.modeling.backbone.fpn import FPN

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
