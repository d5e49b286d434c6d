"""EfficientNet-Lite computes what timm's models compute, bit for bit, and needs no timm."""

import sys

import pytest
import torch

from detlite.modeling.backbone.timm import backbone as timm_backbone
from detlite.modeling.backbone.timm.backbone import TimmBackbone
from detlite.modeling.backbone.timm.efficientnet_lite import SCALES, EfficientNetLite


@pytest.fixture(params=SCALES)
def name(request):
    return request.param


@pytest.fixture
def backbones(monkeypatch, name):
    """`backbones((4, 8), ...)`: return detlite's backbone, and timm's with the same weights."""
    pytest.importorskip("timm", reason="timm is not installed")

    def build(*args, **options):
        own = TimmBackbone(name, *args, **options)
        with monkeypatch.context() as patch:
            patch.setattr(
                timm_backbone, "EfficientNetLite", lambda n: timm_backbone.create_timm_model(n, 0)
            )
            reference = TimmBackbone(name, *args, **options)
        timm_backbone._fix_padding(reference.net)
        generator = torch.Generator().manual_seed(0)
        for value in own.state_dict().values():
            if value.ndim == 1:  # norms whose scales and variances are positive
                value.copy_(0.5 + torch.rand(value.shape, generator=generator))
        reference.load_state_dict(own.state_dict())
        assert type(own.net) is not type(reference.net)
        return own, reference

    return build


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strides", "frozen_norm"),
    [((4, 8, 16, 32), True), ((4, 8, 16, 32), False), ((8, 16, 32), True), ((16,), False)],
)
def test_maps_and_gradients_equal_those_of_timm(backbones, strides, frozen_norm):
    own, reference = backbones(strides, frozen_norm=frozen_norm)
    assert list(own.state_dict()) == list(reference.state_dict())
    assert own.channels == reference.channels
    x = torch.randn(2, 3, 70, 96)
    maps, expected = own(x), reference(x)
    assert all(map(torch.equal, maps, expected))
    for one in (maps, expected):
        sum(level.square().sum() for level in one).backward()
    gradients = {name: value.grad for name, value in reference.named_parameters()}
    for name, value in own.named_parameters():
        assert value.grad.equal(gradients[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("freeze_at", [0, 1, 2, 3, 5])
def test_the_same_parts_are_frozen_and_layers_grouped(backbones, freeze_at):
    own, reference = backbones((4, 8, 16, 32), freeze_at)
    frozen, expected = (
        {name for name, value in net.named_parameters() if not value.requires_grad}
        for net in (own, reference)
    )
    assert frozen == expected
    assert list(own.state_dict()) == list(reference.state_dict())
    names, expected_names = (
        [sorted(ids[id(value)] for value in layer) for layer in net.layers()]
        for net in (own, reference)
        for ids in [{id(value): name for name, value in net.named_parameters()}]
    )
    assert names == expected_names


def test_random_weights_have_timms_deviations(backbones, name):
    torch.manual_seed(0)
    own = EfficientNetLite(name)
    reference = timm_backbone.create_timm_model(name, 0).state_dict()
    for name, value in own.state_dict().items():
        if value.ndim == 4 and value.numel() > 4000:
            assert value.std().item() == pytest.approx(reference[name].std().item(), rel=0.1), name


def test_timm_is_not_imported(monkeypatch, name):
    for module in [*(module for module in sys.modules if module.startswith("timm.")), "timm"]:
        monkeypatch.setitem(sys.modules, module, None)
    backbone = TimmBackbone(name, (4, 8, 16, 32), 2, True)
    assert len(backbone(torch.randn(1, 3, 32, 32))) == 4
    assert len(backbone.layers()) == 8


@pytest.mark.parametrize("options", [{"drop_path": 0.1}, {"checkpoint_activations": True}])
def test_timm_serves_its_own_options(name, options):
    pytest.importorskip("timm", reason="timm is not installed")
    body = TimmBackbone(name, (4, 8), frozen_norm=True, **options)
    assert not isinstance(body.net, EfficientNetLite)
