"""Deformable convolution: where its taps lie, and bodies that have it."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from detlite.config import ConfigError
from detlite.modeling.backbone.deform import DeformConv3x3
from detlite.modeling.backbone.resnet import ResNet, ResNetOptions
from detlite.modeling.build import build_model


@pytest.mark.parametrize("modulated", [False, True])
@pytest.mark.parametrize(
    ("stride", "dilation", "groups", "offset_groups"), [(1, 1, 1, 1), (2, 1, 2, 1), (1, 2, 1, 2)]
)
def test_it_starts_as_the_plain_convolution(modulated, stride, dilation, groups, offset_groups):
    layer = DeformConv3x3(
        4, 6, stride, dilation, groups, modulated=modulated, offset_groups=offset_groups
    )
    x = torch.randn(2, 4, 9, 7)
    wanted = F.conv2d(x, layer.conv.weight, None, stride, dilation, dilation, groups)
    torch.testing.assert_close(layer(x), wanted / 2 if modulated else wanted)


def sampled(image: torch.Tensor, y: float, x: float) -> torch.Tensor:
    """[C] at a point of [C, H, W], bilinear, zero outside."""
    height, width = image.shape[-2:]
    total = torch.zeros(len(image))
    for row in (int(y // 1), int(y // 1) + 1):
        for column in (int(x // 1), int(x // 1) + 1):
            if 0 <= row < height and 0 <= column < width:
                weight = (1 - abs(y - row)) * (1 - abs(x - column))
                total += weight * image[:, row, column]
    return total


@pytest.mark.parametrize("modulated", [False, True])
def test_taps_lie_where_the_offsets_say(modulated):
    layer = DeformConv3x3(3, 2, modulated=modulated)
    x = torch.randn(1, 3, 6, 5)
    values = torch.randn(27 if modulated else 18)
    layer.offset.bias.data.copy_(values)  # the same everywhere, whatever is in the picture
    out = layer(x)[0]
    for row, column in ((0, 0), (3, 2), (5, 4)):
        wanted = torch.zeros(2)
        for tap in range(9):
            dy, dx = values[2 * tap : 2 * tap + 2].tolist()
            weight = values[18 + tap].sigmoid() if modulated else 1.0
            found = sampled(x[0], row - 1 + tap // 3 + dy, column - 1 + tap % 3 + dx)
            wanted += weight * layer.conv.weight[:, :, tap // 3, tap % 3] @ found
        torch.testing.assert_close(out[:, row, column], wanted, rtol=1e-4, atol=1e-5)


def test_half_precision_outside_double_precision_inside():
    layer = DeformConv3x3(4, 4, modulated=True)
    layer.offset.bias.data.normal_()
    x = torch.randn(1, 4, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        half = layer(x.bfloat16())
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), layer(x), rtol=0.05, atol=0.05)
    assert layer.double()(x.double()).dtype == torch.float64


def test_offsets_learn():
    layer = DeformConv3x3(2, 2, modulated=True)
    layer(torch.randn(1, 2, 6, 6)).square().sum().backward()
    assert layer.offset.weight.grad.abs().sum() > 0


def test_chosen_stages_have_it_and_start_alike():
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


@pytest.mark.parametrize("modulated", [False, True])
def test_detector_by_config_trains_and_detects(tiny_config, make_batch, modulated):
    cfg = tiny_config(
        "MODEL.BACKBONE.CONV_BODY", "R-50-FPN", "MODEL.RESNETS.WIDTH_PER_GROUP", 8,
        "MODEL.RESNETS.STAGE_WITH_DCN", (False, True, True, True),
        "MODEL.RESNETS.WITH_MODULATED_DCN", modulated, "MODEL.RESNETS.DEFORMABLE_GROUPS", 2,
    )  # fmt: skip
    model = build_model(cfg)
    images, targets = make_batch(2, 1)
    sum(model.train()(images, targets).values()).backward()
    offsets = [p for name, p in model.named_parameters() if ".offset." in name]
    assert len(offsets) == 2 * (4 + 6 + 3)
    assert all(p.grad.isfinite().all() for p in offsets)
    assert len(model.eval()(images)) == 2


@pytest.mark.parametrize(
    ("opts", "message"),
    [
        (("MODEL.BACKBONE.CONV_BODY", "R-18-FPN"), "ResNet-18 has basic blocks"),
        (
            ("MODEL.BACKBONE.CONV_BODY", "R-50-FPN", "MODEL.RESNETS.DEFORMABLE_GROUPS", 3),
            "DEFORMABLE_GROUPS 3 does not divide the",
        ),
    ],
)
def test_what_cannot_be_deformed(tiny_config, opts, message):
    with pytest.raises(ConfigError, match=message):
        build_model(tiny_config("MODEL.RESNETS.STAGE_WITH_DCN", (False, False, False, True), *opts))
