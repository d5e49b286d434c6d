import copy

import pytest
import torch
from torch import Tensor, nn

from detlite.modeling.layers import conv as module
from detlite.modeling.layers.conv import (
    CPUConv2d,
    StridedPointwiseConv2d,
    replace_crashing_convs,
    slow_in_bfloat16,
    slow_in_float32,
    weight_gradient,
)
from detlite.modeling.optimize_for_training import (
    undo_optimize_for_training,
    use_fast_conv_gradients,
)

# channels in and out, kernel, stride, groups, dilation, bias
SHAPES = [
    (6, 6, 3, 2, 6, 1, False),
    (6, 12, 5, 1, 6, 1, True),
    (8, 8, 3, 1, 2, 1, True),
    (8, 16, (1, 7), (2, 1), 4, 2, False),
]


def convolution(shape: tuple) -> nn.Conv2d:
    before, after, kernel, stride, groups, dilation, bias = shape
    sides = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    padding = tuple(dilation * (side // 2) for side in sides)
    return nn.Conv2d(before, after, kernel, stride, padding, dilation, groups, bias)


def gradients(conv: nn.Conv2d, x: Tensor, weights: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = conv(x)
    assert y.dtype == torch.bfloat16
    return [y, *torch.autograd.grad((y * weights).sum(), [x, *conv.parameters()])]


@pytest.mark.parametrize("shape", SHAPES)
def test_bfloat16_gradients_are_computed_in_float32(shape: tuple) -> None:
    conv = convolution(shape)
    own = CPUConv2d(conv)
    x = torch.randn(2, shape[0], 9, 11)
    rounded = copy.deepcopy(conv)  # the forward pass rounds map and weights
    with torch.no_grad():
        for parameter in rounded.parameters():
            parameter.copy_(parameter.bfloat16())
    rounded_x = x.bfloat16().float().requires_grad_()
    expected = rounded(rounded_x)
    weights = torch.randn_like(expected).bfloat16().float()
    expected_gradients = torch.autograd.grad(
        (expected * weights).sum(), [rounded_x, *rounded.parameters()]
    )
    result = gradients(own, x, weights)
    torch.testing.assert_close(result[0].float(), expected, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(result[1], expected_gradients[0], rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(result[2:], list(expected_gradients[1:]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [*SHAPES, (8, 8, 5, 1, 8, 1, True)])
def test_other_results_equal_conv2d(shape: tuple) -> None:
    conv = convolution(shape)
    if shape == (8, 8, 5, 1, 8, 1, True):
        conv.padding = "same"  # left to torch
    own, x = CPUConv2d(conv), torch.randn(2, shape[0], 9, 11)
    torch.testing.assert_close(own(x), conv(x))  # float32
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(own(x), conv(x))
    stack = nn.Sequential(own)
    undo_optimize_for_training(stack)
    assert type(stack[0]) is nn.Conv2d
    assert stack[0].weight is own.weight is conv.weight
    torch.testing.assert_close(stack[0](x), conv(x))
    half = copy.deepcopy(own).bfloat16()
    half(x.bfloat16()).sum().backward()
    assert half.weight.grad is not None
    assert half.weight.grad.dtype == torch.bfloat16


def test_frozen_weights_have_no_gradient() -> None:
    own = CPUConv2d(convolution(SHAPES[0]).requires_grad_(False))
    x = torch.randn(1, 6, 8, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        own(x).sum().backward()
        assert x.grad is not None
        assert own.weight.grad is None
        assert not own(x.detach()).requires_grad


@pytest.mark.parametrize(
    ("conv", "in_bfloat16", "in_float32"),
    [
        (nn.Conv2d(32, 32, 3, groups=32), False, False),
        (nn.Conv2d(32, 32, 3, 2, groups=32), True, False),
        (nn.Conv2d(32, 32, 5, groups=32), True, False),
        (nn.Conv2d(64, 64, 3, groups=8), True, False),
        (nn.Conv2d(64, 64, 3, groups=4), False, False),
        (nn.Conv2d(32, 64, 3), False, True),
        (nn.Conv2d(32, 64, 3, dilation=2), False, True),
        (nn.Conv2d(32, 64, 1), False, False),
        (nn.Conv2d(32, 64, 3, 2), False, False),
        (nn.Conv2d(16, 64, 3), False, False),
        (nn.Conv2d(64, 15, 3), False, False),
    ],
)
def test_slow_convolutions_are_replaced(
    monkeypatch, conv: nn.Conv2d, in_bfloat16: bool, in_float32: bool
) -> None:
    for capability in ("AVX2", "AVX512", "DEFAULT"):
        monkeypatch.setattr(module, "CAPABILITY", capability)
        slow = in_bfloat16, in_float32 and capability == "AVX2"
        assert (slow_in_bfloat16(conv), slow_in_float32(conv)) == slow
        backbone = nn.Sequential(conv)
        use_fast_conv_gradients(backbone)
        assert isinstance(backbone[0], CPUConv2d) == any(slow)


# channels in and out, kernel, padding, dilation, bias, images, height, width
WIDE = [
    (32, 40, (3, 3), (1, 1), (1, 1), True, 2, 9, 11),
    (40, 32, (3, 3), (1, 1), (1, 1), False, 3, 1, 2),
    (32, 32, (3, 3), (2, 2), (2, 2), True, 1, 7, 6),
    (32, 32, (5, 3), (0, 2), (1, 1), True, 2, 8, 8),
    (32, 32, (1, 7), (0, 3), (1, 1), False, 2, 6, 5),
    (32, 32, (3, 3), (4, 4), (3, 2), False, 2, 3, 3),
    (32, 32, (3, 3), (1, 1), (1, 1), True, 0, 4, 4),
]


@pytest.fixture
def avx2(monkeypatch) -> None:
    monkeypatch.setattr(module, "CAPABILITY", "AVX2")


@pytest.mark.parametrize("block", [1, 1500, 2**20])  # one row, some rows, or some images at a time
@pytest.mark.parametrize("shape", WIDE)
def test_weight_gradient_matches_torch(monkeypatch, shape: tuple, block: int) -> None:
    monkeypatch.setattr(module, "CACHE_BLOCK", block)
    before, after, kernel, padding, dilation, _, images, height, width = shape
    x = torch.randn(images, before, height, width, dtype=torch.float64)
    weight = torch.randn(after, before, *kernel, dtype=torch.float64, requires_grad=True)
    y = nn.functional.conv2d(x, weight, None, 1, padding, dilation)
    gradient = torch.randn_like(y)
    expected = torch.autograd.grad(y, weight, gradient)[0]
    result = weight_gradient(gradient, x, kernel, padding, dilation)
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", WIDE[:2])
def test_gradients_by_matrix_products_match_torch(avx2, shape: tuple) -> None:
    before, after, kernel, padding, dilation, bias, images, height, width = shape
    conv = nn.Conv2d(before, after, kernel, 1, padding, dilation, bias=bias)
    own = CPUConv2d(conv)
    x = torch.randn(images, before, height, width).contiguous(memory_format=torch.channels_last)
    result, expected = (float_gradients(layer, conv, x) for layer in (own, conv))
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
    assert own(x).grad_fn.use_matmuls


def float_gradients(layer: nn.Module, conv: nn.Conv2d, x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    y = layer(x)
    weights = torch.linspace(-1, 1, y.numel()).view(y.shape)
    return [y, *torch.autograd.grad((y * weights).sum(), [x, *conv.parameters()])]


def test_matrix_products_are_used_only_where_they_are_faster(avx2) -> None:
    conv = nn.Conv2d(32, 32, 3, padding=1)
    own, x = CPUConv2d(conv), torch.randn(2, 32, 6, 6)
    last = x.contiguous(memory_format=torch.channels_last)

    def uses_products(x: Tensor) -> bool:
        return getattr(own(x).grad_fn, "use_matmuls", False)

    assert uses_products(last)
    assert not uses_products(x)  # not channels-last
    with torch.autocast("cpu", torch.bfloat16):
        assert not uses_products(last)
    with torch.no_grad():
        assert own(last).grad_fn is None
    half = copy.deepcopy(own).double()
    assert not hasattr(half(last.double()).grad_fn, "use_matmuls")
    own.weight.requires_grad_(False)  # only the bias and the map have a gradient
    assert not uses_products(last.clone().requires_grad_())


@pytest.mark.parametrize("channels", [2, 3, 12])
def test_strided_pointwise_convolution_of_few_channels(channels):
    """nn.Conv2d crashes the process in the backward pass of a channels-last map."""
    net = nn.Sequential(nn.Conv2d(channels, 48, 1, stride=2), nn.Conv2d(48, 8, 1, stride=2))
    reference = copy.deepcopy(net)
    replace_crashing_convs(net)
    assert [type(conv) for conv in net] == [StridedPointwiseConv2d, nn.Conv2d]
    assert list(net.state_dict()) == list(reference.state_dict())
    net.to(memory_format=torch.channels_last)
    x = torch.rand(2, channels, 63, 72)
    net(x.contiguous(memory_format=torch.channels_last)).square().sum().backward()
    reference(x).square().sum().backward()
    for own, expected in zip(net.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(own.grad, expected.grad, rtol=1e-4, atol=1e-3)
    with torch.no_grad():
        torch.testing.assert_close(net(x), reference(x))
