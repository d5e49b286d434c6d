"""Convolutions of groups of few channels: gradients in float32 where bfloat16's take long."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from detlite.modeling.backbone.grouped import GroupedConv2d, quicken_gradients, slow_in_bfloat16
from detlite.modeling.build import build_model

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
def test_gradients_are_those_of_float32_arithmetic(shape: tuple) -> None:
    conv = convolution(shape)
    own = GroupedConv2d(conv)
    x = torch.randn(2, shape[0], 9, 11)
    rounded = copy.deepcopy(conv)  # what the forward pass makes of map and weights
    with torch.no_grad():
        for parameter in rounded.parameters():
            parameter.copy_(parameter.bfloat16())
    shown = x.bfloat16().float().requires_grad_()
    expected = rounded(shown)
    weights = torch.randn_like(expected).bfloat16().float()
    to_all = torch.autograd.grad((expected * weights).sum(), [shown, *rounded.parameters()])
    found = gradients(own, x, weights)
    torch.testing.assert_close(found[0].float(), expected, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(found[1], to_all[0], rtol=1e-2, atol=1e-2)  # rounded once
    torch.testing.assert_close(found[2:], list(to_all[1:]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_all_else_is_plain(shape: tuple) -> None:
    conv = convolution(shape)
    own = GroupedConv2d(conv)
    x = torch.randn(2, shape[0], 9, 11)
    assert torch.equal(own(x), conv(x))  # float32
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(own(x), conv(x))
    plain = own.plain()
    assert type(plain) is nn.Conv2d
    assert plain.weight is own.weight is conv.weight
    assert torch.equal(plain(x), conv(x))
    half = copy.deepcopy(own).bfloat16()
    y = half(x.bfloat16())
    y.sum().backward()
    assert half.weight.grad is not None
    assert half.weight.grad.dtype == torch.bfloat16


def test_margins_that_are_named_are_left_to_torch() -> None:
    conv = nn.Conv2d(8, 8, 5, groups=8, padding="same")
    x, weights = torch.randn(2, 8, 9, 11), torch.tensor(1.0)
    assert all(
        torch.equal(*pair)
        for pair in zip(
            gradients(GroupedConv2d(conv), x, weights), gradients(conv, x, weights), strict=True
        )
    )


def test_frozen_weights_get_no_gradient() -> None:
    own = GroupedConv2d(convolution(SHAPES[0]).requires_grad_(False))
    x = torch.randn(1, 6, 8, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        own(x).sum().backward()
        assert x.grad is not None
        assert own.weight.grad is None
        assert not own(x.detach()).requires_grad


@pytest.mark.parametrize(
    ("conv", "slow"),
    [
        (nn.Conv2d(32, 32, 3, groups=32), False),
        (nn.Conv2d(32, 32, 3, 2, groups=32), True),
        (nn.Conv2d(32, 32, 5, groups=32), True),
        (nn.Conv2d(64, 64, 3, groups=8), True),
        (nn.Conv2d(64, 64, 3, groups=4), False),
        (nn.Conv2d(64, 64, 5), False),
    ],
)
def test_which_are_slow(conv: nn.Conv2d, slow: bool) -> None:
    assert slow_in_bfloat16(conv) == slow
    body = nn.Sequential(conv)
    quicken_gradients(body)
    assert isinstance(body[0], GroupedConv2d) == slow


def test_convolutions_that_pad_otherwise_stay() -> None:
    body = nn.Sequential(
        nn.Conv2d(8, 8, 5, groups=8, padding="same"),
        nn.Conv2d(8, 8, 5, groups=8, padding=2, padding_mode="reflect"),
    )
    quicken_gradients(body)
    assert not any(isinstance(module, GroupedConv2d) for module in body)


def test_a_compiled_step_gives_the_same_gradients() -> None:
    own = GroupedConv2d(convolution(SHAPES[1]))
    x = torch.randn(2, 6, 9, 11)
    expected = gradients(own, x, torch.tensor(1.0))
    compiled = torch.compile(own, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(gradients_of(compiled, own, x), expected[1:])
    torch._dynamo.reset()


def gradients_of(call: nn.Module, conv: nn.Conv2d, x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = call(x)
    return list(torch.autograd.grad(y.float().sum(), [x, *conv.parameters()]))


@pytest.mark.parametrize(
    "options",
    [
        ["MODEL.BACKBONE.CONV_BODY", "timm/tf_efficientnet_lite0-FPN"],
        ["MODEL.RESNETS.NUM_GROUPS", 8, "MODEL.RESNETS.WIDTH_PER_GROUP", 4,
         "MODEL.BACKBONE.CONV_BODY", "R-50-FPN"],
    ],
    ids=["EfficientNet", "ResNeXt"],
)  # fmt: skip
def test_bodies_have_them(tiny_config, options: list) -> None:
    if "timm" in str(options):
        pytest.importorskip("timm")
    body = build_model(tiny_config("MODEL.MASK_ON", False, *options)).backbone.body.train()
    convs = [module for module in body.modules() if isinstance(module, nn.Conv2d)]
    slow = [conv for conv in convs if slow_in_bfloat16(conv)]
    assert slow
    assert all(isinstance(conv, GroupedConv2d) for conv in slow)
    with torch.autocast("cpu", torch.bfloat16):
        maps = body(torch.rand(1, 3, 64, 64))
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        torch.stack([level.float().sum() for level in maps]).sum().backward()
    assert any("FloatGradients" in event.key for event in seen.key_averages())
