"""Frozen norms within convolutions beside the two as they are."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from detlite.inference.optimize import optimize
from detlite.modeling.backbone.resnet import ResNet, ResNetOptions
from detlite.modeling.backbone.timm_backbone import TimmBackbone
from detlite.modeling.build import build_model
from detlite.modeling.layers.norm import FrozenBatchNorm2d
from detlite.modeling.optimize_for_training import FoldedConvBN2d, fold_frozen_norms, undo_optimize_for_training


def resnet(depth: int, freeze_at: int = 0, **kinds: object) -> nn.Module:
    spec = ResNetOptions(depth, FrozenBatchNorm2d, stem_channels=8, res2_channels=8, **kinds)
    return ResNet(spec, (2, 3, 4, 5), freeze_at)


def timm_body(name: str, freeze_at: int = 0) -> nn.Module:
    pytest.importorskip("timm", reason="timm is not installed")
    return TimmBackbone(name, (4, 8, 16, 32), freeze_at, frozen_norm=True)


BODIES: dict[str, tuple[Callable[[], nn.Module], int]] = {  # and the norms that stay apart
    "R-18": (lambda: resnet(18), 0),
    "R-50": (lambda: resnet(50), 0),
    "R-50, deformable": (lambda: resnet(50, deformable=(False, False, False, True)), 3),
    "Lite0": (lambda: timm_body("tf_efficientnet_lite0"), 0),
    "Lite0, two stages frozen": (lambda: timm_body("tf_efficientnet_lite0", 3), 0),
    "RegNet": (lambda: timm_body("regnetx_002"), 0),
    "a buffer that is not stored": (lambda: timm_body("resnetblur18"), 0),
}


@pytest.fixture(params=BODIES)
def bodies(request: pytest.FixtureRequest) -> tuple[nn.Module, nn.Module, int]:
    """A body as it is, one whose norms are folded, and how many norms are not."""
    make, apart = BODIES[request.param]
    plain = make().double().to(memory_format=torch.channels_last)
    for module in plain.modules():
        if isinstance(module, FrozenBatchNorm2d):
            module.running_mean.normal_(std=0.2)
            module.running_var.uniform_(0.5, 2)
            module.weight.uniform_(0.5, 1.5)
            module.bias.normal_(std=0.2)
    folded = copy.deepcopy(plain)
    fold_frozen_norms(folded)
    return plain, folded, apart


def maps_and_gradients(body: nn.Module, x: Tensor) -> tuple[list[Tensor], dict[str, Tensor]]:
    torch.manual_seed(1)
    maps = body(x)
    sum((level * torch.randn_like(level)).sum() for level in maps).backward()
    found = {name: p.grad for name, p in body.named_parameters() if p.grad is not None}
    return maps, found


def test_maps_and_gradients_are_the_same(bodies):
    plain, folded, _ = bodies
    x = torch.randn(2, 3, 64, 64).double().contiguous(memory_format=torch.channels_last)
    expected, found = (maps_and_gradients(body, x) for body in (plain, folded))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert len(found[1]) == sum(p.requires_grad for p in plain.parameters())


def test_every_norm_behind_a_convolution_is_folded(bodies):
    plain, folded, apart = bodies
    norms = [m for m in folded.modules() if isinstance(m, FrozenBatchNorm2d)]
    convs = sum(isinstance(m, FoldedConvBN2d) for m in folded.modules())
    assert convs == sum(norm.applied for norm in norms) == len(norms) - apart > 10
    assert list(folded.state_dict()) == list(plain.state_dict())
    assert [n for n, _ in folded.named_parameters()] == [n for n, _ in plain.named_parameters()]


def test_without_gradients_and_on_contiguous_maps_nothing_changes(bodies):
    plain, folded, _ = bodies
    x = torch.randn(1, 3, 64, 96).double()
    for body in (plain, folded):
        body.to(memory_format=torch.contiguous_format)
    for left, right in zip(plain(x), folded(x), strict=True):
        assert torch.equal(left, right)
    for body in (plain, folded):
        body.eval().to(memory_format=torch.channels_last)
    with torch.no_grad():
        for left, right in zip(plain(x), folded(x), strict=True):
            assert torch.equal(left, right)


def test_copies_and_checkpoints_stand_alone(bodies):
    _, folded, _ = bodies
    other = copy.deepcopy(folded)
    for value in other.state_dict().values():
        value.zero_()
    x = torch.randn(1, 3, 64, 64).double().contiguous(memory_format=torch.channels_last)
    expected = folded(x)
    assert not other(x)[-1].any()
    other.load_state_dict(folded.state_dict())
    assert all(torch.equal(*pair) for pair in zip(other(x), expected, strict=True))


def test_unfolding_gives_what_there_was(bodies):
    plain, folded, _ = bodies
    undo_optimize_for_training(folded)
    assert [type(m) for m in folded.modules()] == [type(m) for m in plain.modules()]
    x = torch.randn(1, 3, 64, 64).double()
    assert all(torch.equal(*pair) for pair in zip(folded(x), plain(x), strict=True))


class Shared(nn.Module):
    """Whose convolutions' results, or layers, are used more than once."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 3, 1), FrozenBatchNorm2d(3)
        self.conv2, self.norm2 = nn.Conv2d(3, 3, 1), FrozenBatchNorm2d(3)
        self.conv3, self.norm3 = nn.Conv2d(3, 3, 1), FrozenBatchNorm2d(3)
        self.conv4, self.norm4 = nn.Conv2d(3, 3, 1), FrozenBatchNorm2d(3)

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.conv1(x)
        x = self.norm1(x) + x
        x = self.norm2(self.conv2(self.norm2(self.conv2(x))))
        raw = self.conv3(x)
        return [raw, self.norm3(raw), self.norm4(self.conv4(x))]


def test_what_others_read_is_not_folded():
    body = Shared()
    fold_frozen_norms(body)
    folded = {name for name, m in body.named_modules() if isinstance(m, FoldedConvBN2d)}
    assert folded == {"conv4"}


class OfOneSize(nn.Sequential):
    """Which reads a value, and takes images of one size."""

    def forward(self, x: Tensor) -> list[Tensor]:
        assert x.shape[2:] == (32, 32)
        return [super().forward(x) * x.mean().item()]


def test_a_body_that_cannot_be_called_without_values_stays_as_it_is(caplog):
    body = OfOneSize(nn.Conv2d(3, 3, 1), FrozenBatchNorm2d(3))
    with caplog.at_level(logging.INFO):
        fold_frozen_norms(body)
    assert "frozen norms stay layers of their own" in caplog.text
    assert not any(isinstance(m, FoldedConvBN2d) for m in body.modules())
    assert body(torch.ones(1, 3, 32, 32))[0].shape == (1, 3, 32, 32)


def kept_numbers(run: Callable[[Tensor], object]) -> int:
    """Numbers of maps that are kept for the backward pass."""
    kept: dict[int, int] = {}

    def keep(t: Tensor) -> Tensor:
        if t.dim() == 4 and len(t) == 5:  # of five images
            kept[t.data_ptr()] = t.numel()
        return t

    x = torch.randn(5, 3, 64, 64).contiguous(memory_format=torch.channels_last)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        result = run(x)
    del result  # until here no address is used twice
    return sum(kept.values())


def test_no_more_is_kept_than_before_and_nothing_of_what_is_frozen():
    plain = resnet(18, freeze_at=2).to(memory_format=torch.channels_last)
    folded = copy.deepcopy(plain)
    fold_frozen_norms(folded)
    assert 0 < kept_numbers(folded) <= kept_numbers(plain)
    assert kept_numbers(lambda x: folded.res2(folded.stem(x))) == 0
    assert kept_numbers(lambda x: folded.requires_grad_(False)(x)) == 0


def test_a_detector_folds_and_its_optimized_copy_fuses(tiny_config):
    opts = ["MODEL.RESNETS.NORM", "FrozenBN", "MODEL.BACKBONE.FREEZE_CONV_BODY_AT", 2]
    model = build_model(tiny_config(*opts))
    assert any(isinstance(m, FoldedConvBN2d) for m in model.backbone.body.modules())
    faster = optimize(model, "float32")
    assert not any(isinstance(m, FoldedConvBN2d) for m in faster.modules())
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        expected = model.eval().backbone(x)
        found = faster.backbone(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert model.backbone.body.stem.norm1.applied


def test_compiles_and_exports_whole():
    body = resnet(18).to(memory_format=torch.channels_last)
    fold_frozen_norms(body)
    x = torch.randn(1, 3, 64, 64).contiguous(memory_format=torch.channels_last)
    expected = body(x)
    torch.testing.assert_close(torch.compile(body, backend="eager", fullgraph=True)(x), expected)
    with torch.no_grad():
        exported = torch.export.export(body.eval(), (x,)).module()
        torch.testing.assert_close(exported(x), expected, rtol=1e-4, atol=1e-4)
