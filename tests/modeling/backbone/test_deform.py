import pytest
import torch
from torch import nn
from torch.nn import functional as F

from detlite.modeling.backbone.deform import DeformConv3x3
from detlite.modeling.backbone.resnet import ResNet, ResNetOptions


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


def sampled(image: torch.Tensor, y: float, x: float) -> torch.Tensor:
    """Return the values [C] at a point of [C, H, W], interpolated, zero outside."""
    height, width = image.shape[-2:]
    total = torch.zeros(len(image))
    for row in (int(y // 1), int(y // 1) + 1):
        for column in (int(x // 1), int(x // 1) + 1):
            if 0 <= row < height and 0 <= column < width:
                weight = (1 - abs(y - row)) * (1 - abs(x - column))
                total += weight * image[:, row, column]
    return total


@pytest.mark.parametrize("modulated", [False, True])
def test_offsets_move_the_taps(modulated):
    layer = DeformConv3x3(nn.Conv2d(3, 2, 3, padding=1, bias=False), modulated)
    x = torch.randn(1, 3, 6, 5)
    values = torch.randn(27 if modulated else 18)
    layer.offset.bias.data.copy_(values)  # constant over the image
    out = layer(x)[0]
    for row, column in ((0, 0), (3, 2), (5, 4)):
        expected = torch.zeros(2)
        for tap in range(9):
            dy, dx = values[2 * tap : 2 * tap + 2].tolist()
            weight = values[18 + tap].sigmoid() if modulated else 1.0
            result = sampled(x[0], row - 1 + tap // 3 + dy, column - 1 + tap % 3 + dx)
            expected += weight * layer.conv.weight[:, :, tap // 3, tap % 3] @ result
        torch.testing.assert_close(out[:, row, column], expected, rtol=1e-4, atol=1e-5)


def test_input_and_output_types():
    layer = DeformConv3x3(nn.Conv2d(4, 4, 3, padding=1, bias=False), modulated=True)
    layer.offset.bias.data.normal_()
    x = torch.randn(1, 4, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        half = layer(x.bfloat16())
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), layer(x), rtol=0.05, atol=0.05)
    assert layer.double()(x.double()).dtype == torch.float64


def test_deformable_stages_start_like_plain_ones():
    spec = {"depth": 50, "stem_channels": 8, "res2_channels": 16, "width_per_group": 4}
    plain = ResNet(ResNetOptions(**spec), (5,)).eval()
    deformed = ResNet(ResNetOptions(**spec, deformable=(False, True, False, True)), (5,)).eval()
    kinds = {name for name, layer in deformed.named_modules() if isinstance(layer, DeformConv3x3)}
    counts = {3: 4, 5: 3}
    assert kinds == {f"res{s}.{b}.conv2" for s, blocks in counts.items() for b in range(blocks)}
    state = plain.state_dict()
    own = deformed.state_dict()
    for name in own:
        if not name.startswith("num_batches") and ".offset." not in name:
            own[name] = state[name.replace("conv2.conv.", "conv2.")]
    deformed.load_state_dict(own)
    x = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(deformed(x)[0], plain(x)[0], rtol=1e-3, atol=1e-4)
