"""ResNets compared with torchvision's, with the same weights."""

import re

import pytest
import torch
import torchvision
from torch import nn
from torch.nn import functional as F

from detlite.modeling.backbone.deform import DeformConv3x3
from detlite.modeling.backbone.resnet import ResNet, ResNetOptions, make_stage
from detlite.modeling.layers.norm import FrozenBatchNorm2d


def torchvision_name(name: str) -> str:
    """Return torchvision's name of an entry of the state dict."""
    name = name.replace("stem.conv1", "conv1").replace("stem.norm1", "bn1")
    name = re.sub(r"res(\d)", lambda match: f"layer{int(match[1]) - 1}", name)
    return re.sub(r"norm(\d)", r"bn\1", name)


def torchvision_resnet(depth: int, **kinds: int) -> nn.Module:
    """Set random batch statistics."""
    model = getattr(torchvision.models, f"resnet{depth}")(weights=None, **kinds).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.running_mean, module.bias.data):
                tensor.normal_(std=0.1)
            for tensor in (module.running_var, module.weight.data):
                tensor.uniform_(0.5, 1.5)
    return model


def copy_from(reference: nn.Module, model: nn.Module) -> None:
    theirs = reference.state_dict()
    model.load_state_dict({name: theirs[torchvision_name(name)] for name in model.state_dict()})


@pytest.mark.parametrize(
    ("depth", "res2", "norm", "kinds"),
    [
        (18, 64, FrozenBatchNorm2d, {}),
        (18, 64, nn.BatchNorm2d, {}),
        (50, 256, FrozenBatchNorm2d, {}),
        (50, 256, nn.BatchNorm2d, {}),
        (50, 256, nn.BatchNorm2d, {"groups": 32, "width_per_group": 8}),
        (50, 256, nn.BatchNorm2d, {"groups": 64, "width_per_group": 4}),
    ],
)
def test_maps_match_torchvision(depth, res2, norm, kinds):
    reference = torchvision_resnet(depth, **kinds)
    options = ResNetOptions(depth, norm, res2_channels=res2, **kinds)
    model = ResNet(options, (2, 3, 4, 5)).eval()
    copy_from(reference, model)
    x = torch.randn(1, 3, 65, 50)
    expected = reference.maxpool(reference.relu(reference.bn1(reference.conv1(x))))
    for stage, ours in zip((1, 2, 3, 4), model(x), strict=True):
        expected = getattr(reference, f"layer{stage}")(expected)
        assert ours.shape == (
            1,
            res2 * 2 ** (stage - 1),
            *(-(-s // 2 ** (stage + 1)) for s in (65, 50)),
        )
        torch.testing.assert_close(
            ours, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item()
        )


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet34", ResNetOptions(34, res2_channels=64)),
        ("resnet101", ResNetOptions(101)),
        ("resnet152", ResNetOptions(152)),
        ("resnext101_32x8d", ResNetOptions(101, groups=32, width_per_group=8)),
        ("resnext101_64x4d", ResNetOptions(101, groups=64, width_per_group=4)),
    ],
)
def test_shapes_match_torchvision(name, options):
    with torch.device("meta"):
        reference = getattr(torchvision.models, name)(weights=None).state_dict()
        model = ResNet(options, (2, 3, 4, 5))
    ours = {torchvision_name(name): value.shape for name, value in model.state_dict().items()}
    assert ours == {k: v.shape for k, v in reference.items() if not k.startswith("fc.")}


@pytest.mark.parametrize("in_1x1", [False, True])
def test_stride_in_the_1x1_or_3x3_convolution(in_1x1):
    stage = make_stage(ResNetOptions(50, stride_in_1x1=in_1x1), 3, stride=2)
    first, second = stage[0], stage[1]
    assert first.conv1.stride == ((2, 2) if in_1x1 else (1, 1))
    assert first.conv2.stride == ((1, 1) if in_1x1 else (2, 2))
    assert second.conv1.stride == second.conv2.stride == (1, 1)
    assert stage(torch.randn(1, 256, 9, 8)).shape == (1, 512, 5, 4)


@pytest.mark.parametrize("modulated", [False, True])
@pytest.mark.parametrize(
    ("stride", "dilation", "groups", "offset_groups"), [(1, 1, 1, 1), (2, 1, 2, 1), (1, 2, 1, 2)]
)
def test_initially_equals_the_plain_convolution(modulated, stride, dilation, groups, offset_groups):
    conv = nn.Conv2d(4, 6, 3, stride, dilation, dilation, groups, bias=False)
    layer = DeformConv3x3(conv, modulated, offset_groups)
    x = torch.randn(2, 4, 9, 7)
    expected = F.conv2d(x, layer.conv.weight, None, stride, dilation, dilation, groups)
    torch.testing.assert_close(layer(x), expected / 2 if modulated else expected)


@pytest.mark.parametrize("modulated", [False, True])
def test_offsets_move_the_taps(modulated):
    conv, x = nn.Conv2d(3, 2, 3, padding=1, bias=False), torch.randn(1, 3, 6, 5)
    layer = DeformConv3x3(conv, modulated)
    weights = torch.randn(9) if modulated else torch.zeros(0)
    # By one row and two columns, constant over the image.
    layer.offset.bias.data.copy_(torch.cat([torch.tensor([1.0, 2.0] * 9), weights]))
    factors = weights.sigmoid().view(3, 3) if modulated else 1.0
    expected = F.conv2d(x, conv.weight * factors, padding=1)
    torch.testing.assert_close(layer(x)[..., :-1, :-2], expected[..., 1:, 2:])


def test_input_and_output_types():
    layer = DeformConv3x3(nn.Conv2d(4, 4, 3, padding=1, bias=False), modulated=True)
    layer.offset.bias.data.normal_()
    x = torch.randn(1, 4, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        half = layer(x.bfloat16())
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), layer(x), rtol=0.05, atol=0.05)
    assert layer.double()(x.double()).dtype == torch.float64
