import copy
import logging
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from detlite.inference.optimize import optimize
from detlite.modeling.backbone.resnet import ResNet, ResNetOptions
from detlite.modeling.backbone.timm.backbone import TimmBackbone
from detlite.modeling.build import build_model
from detlite.modeling.layers.conv import CPUConv2d, slow_in_float32
from detlite.modeling.layers.norm import FrozenBatchNorm2d
from detlite.modeling.optimize_for_training import (
    FoldedConvBN2d,
    fold_frozen_norms,
    optimize_for_training,
    undo_optimize_for_training,
    use_fast_conv_gradients,
)


def resnet(depth: int, freeze_at: int = 0, **kinds: object) -> nn.Module:
    options = ResNetOptions(depth, FrozenBatchNorm2d, stem_channels=8, res2_channels=8, **kinds)
    return ResNet(options, (2, 3, 4, 5), freeze_at)


def timm_backbone(name: str, freeze_at: int = 0) -> nn.Module:
    pytest.importorskip("timm", reason="timm is not installed")
    return TimmBackbone(name, (4, 8, 16, 32), freeze_at, frozen_norm=True)


# Constructors, and the number of norms that cannot be folded.
BACKBONES: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "R-18": (lambda: resnet(18), 0),
    "R-50": (lambda: resnet(50), 0),
    "R-50, deformable": (lambda: resnet(50, deformable=(False, False, False, True)), 3),
    "Lite0, two stages frozen": (lambda: timm_backbone("tf_efficientnet_lite0", 3), 0),
    "non-persistent buffer": (lambda: timm_backbone("resnetblur18"), 0),
}


@pytest.fixture(
    params=[
        pytest.param(name, marks=() if name in ("R-18", "R-50, deformable") else pytest.mark.slow)
        for name in BACKBONES
    ]
)
def backbones(request: pytest.FixtureRequest) -> tuple[nn.Module, nn.Module, int]:
    """Return a plain backbone, a copy with folded norms, and the number of other norms."""
    make, unfolded = BACKBONES[request.param]
    plain = make().double().to(memory_format=torch.channels_last)
    for module in plain.modules():
        if isinstance(module, FrozenBatchNorm2d):
            for value in module.buffers():
                value.uniform_(0.5, 1.5)
    folded = copy.deepcopy(plain)
    fold_frozen_norms(folded)
    return plain, folded, unfolded


def maps_and_gradients(backbone: nn.Module, x: Tensor) -> tuple[list[Tensor], dict[str, Tensor]]:
    torch.manual_seed(1)
    maps = backbone(x)
    sum((level * torch.randn_like(level)).sum() for level in maps).backward()
    actual = {name: p.grad for name, p in backbone.named_parameters() if p.grad is not None}
    return maps, actual


def test_folded_maps_and_gradients_are_the_same(backbones):
    """Every norm after a convolution is folded; the state dict does not change."""
    plain, folded, unfolded = backbones
    norms = [m for m in folded.modules() if isinstance(m, FrozenBatchNorm2d)]
    convs = sum(isinstance(m, FoldedConvBN2d) for m in folded.modules())
    assert convs == sum(norm.folded for norm in norms) == len(norms) - unfolded > 10
    assert list(folded.state_dict()) == list(plain.state_dict())
    x = torch.randn(2, 3, 64, 64).double().contiguous(memory_format=torch.channels_last)
    expected, actual = (maps_and_gradients(backbone, x) for backbone in (plain, folded))
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
    assert len(actual[1]) == sum(p.requires_grad for p in plain.parameters())
    undo_optimize_for_training(folded)
    assert [type(m) for m in folded.modules()] == [type(m) for m in plain.modules()]
    torch.testing.assert_close(folded(x), plain(x))


def _double(norm: FrozenBatchNorm2d) -> None:
    norm.load_state_dict({name: 2 * value for name, value in norm.state_dict().items()})


@pytest.mark.parametrize(
    ("change", "times"),
    [
        (lambda norm: None, 1),
        (lambda norm: norm.running_mean.add_(1), 2),
        (_double, 2),
        (lambda norm: setattr(norm, "weight", torch.full((3,), 2.0)), 2),
        (lambda norm: copy.deepcopy(norm).bias.add_(1), 1),
    ],
    ids=["none", "in place", "loaded", "replaced", "of a copy"],
)
def test_scale_and_shift_are_computed_again_if_the_norm_changed(monkeypatch, change, times):
    computed: list[FrozenBatchNorm2d] = []
    compute = FrozenBatchNorm2d.scale_and_shift
    monkeypatch.setattr(
        FrozenBatchNorm2d, "scale_and_shift", lambda norm: computed.append(norm) or compute(norm)
    )
    norm, plain = FrozenBatchNorm2d(3), nn.Conv2d(3, 3, 1)
    folded, x = FoldedConvBN2d(plain, norm), torch.randn(1, 3, 4, 4)
    folded(x)
    change(norm)
    scale, shift = (value[:, None, None] for value in compute(norm))
    for _ in range(2):
        torch.testing.assert_close(folded(x), plain(x) * scale + shift)
    assert len(computed) == times


class SharedLayers(nn.Module):
    """Uses outputs of convolutions, or layers, more than once."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3, 3, 1) for _ in range(4))
        self.norms = nn.ModuleList(FrozenBatchNorm2d(3) for _ in range(4))

    def forward(self, x: Tensor) -> list[Tensor]:
        convs, norms = self.convs, self.norms
        x = convs[0](x)
        x = norms[0](x) + x
        x = norms[1](convs[1](norms[1](convs[1](x))))
        raw = convs[2](x)
        return [raw, norms[2](raw), norms[3](convs[3](x))]


def test_convolutions_with_other_readers_are_not_folded():
    backbone = SharedLayers()
    fold_frozen_norms(backbone)
    assert [isinstance(conv, FoldedConvBN2d) for conv in backbone.convs] == [False] * 3 + [True]


class FixedSize(nn.Sequential):
    """Reads a value, and accepts images of only one size."""

    def forward(self, x: Tensor) -> list[Tensor]:
        assert x.shape[2:] == (32, 32)
        return [super().forward(x) * x.mean().item()]


def test_backbones_that_need_values_stay_unchanged(caplog):
    backbone = FixedSize(nn.Conv2d(3, 3, 1), FrozenBatchNorm2d(3))
    with caplog.at_level(logging.INFO):
        fold_frozen_norms(backbone)
    assert "frozen batch norm is not folded" in caplog.text
    assert not any(isinstance(m, FoldedConvBN2d) for m in backbone.modules())
    assert backbone(torch.ones(1, 3, 32, 32))[0].shape == (1, 3, 32, 32)


def test_model_is_optimized_and_its_inference_copy_is_plain(tiny_config):
    opts = ["MODEL.RESNETS.NORM", "FrozenBN", "MODEL.BACKBONE.FREEZE_CONV_BODY_AT", 2]
    model = build_model(tiny_config(*opts))
    assert not any(isinstance(m, (FoldedConvBN2d, CPUConv2d)) for m in model.modules())
    assert optimize_for_training(model) is model
    assert not model.static_shapes  # they pay on GPUs only
    layers = list(model.modules())
    assert list(optimize_for_training(model).modules()) == layers
    assert any(isinstance(m, FoldedConvBN2d) for m in model.backbone.body.modules())
    faster = optimize(model, "float32")
    assert not any(isinstance(m, FoldedConvBN2d) for m in faster.modules())
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        expected = model.eval().backbone(x)
        actual = faster.backbone(x)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert model.backbone.body.stem.norm1.folded


def test_convolutions_with_other_padding_stay() -> None:
    backbone = nn.Sequential(
        nn.Conv2d(8, 8, 5, groups=8, padding="same"),
        nn.Conv2d(8, 8, 5, groups=8, padding=2, padding_mode="reflect"),
    )
    use_fast_conv_gradients(backbone)
    assert not any(isinstance(layer, CPUConv2d) for layer in backbone)


def test_slow_convolutions_of_the_whole_model_are_replaced(monkeypatch, tiny_config):
    monkeypatch.setattr("detlite.modeling.layers.conv.CAPABILITY", "AVX2")
    wide = "MODEL.RESNETS.BACKBONE_OUT_CHANNELS", 32, "MODEL.ROI_MASK_HEAD.CONV_LAYERS", [32]
    model = optimize_for_training(build_model(tiny_config(*wide)))
    convs = {n: m for n, m in model.named_modules() if isinstance(m, nn.Conv2d)}
    slow = {name for name, conv in convs.items() if slow_in_float32(conv)}
    assert slow == {name for name, conv in convs.items() if isinstance(conv, CPUConv2d)}
    assert {name.split(".")[0] for name in slow} == {"backbone", "rpn", "roi_heads"}
