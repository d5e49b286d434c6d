from functools import partial

import pytest
import torch
from torch import nn

from detlite.modeling.backbone.activation_checkpointing import checkpoint_activations
from detlite.modeling.backbone.resnet import ResNet, ResNetOptions
from detlite.modeling.backbone.timm.backbone import TimmBackbone
from detlite.modeling.backbone.timm.vit import TimmViT
from detlite.modeling.backbone.vit import ViT, ViTOptions
from detlite.modeling.build import build_model
from detlite.modeling.layers.norm import FrozenBatchNorm2d


def step(backbone: nn.Module, x: torch.Tensor) -> tuple[list[torch.Tensor], int]:
    """Return the maps of a step and how many numbers were saved for backward."""
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        maps = backbone(x)
    kept = {p: n for p, n in kept.items() if p not in {q.data_ptr() for q in backbone.parameters()}}
    numbers = sum(kept.values())
    sum(m.square().sum() for m in maps).backward()
    return maps, numbers


def test_only_trained_stages_are_recomputed():
    calls = []
    block, x = nn.Conv2d(3, 3, 1), torch.randn(1, 3, 4, 4)
    block.register_forward_pre_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    checkpoint_activations(block, x).sum().backward()
    assert calls == [True, True]
    with torch.no_grad():
        checkpoint_activations(block, x)
    checkpoint_activations(block.requires_grad_(False), x.requires_grad_()).sum().backward()
    assert calls[2:] == [False, True]


def test_the_key_reaches_the_body(tiny_config):
    opts = "MODEL.BACKBONE.CHECKPOINT_ACTIVATIONS", True, "MODEL.RESNETS.NORM", "FrozenBN"
    assert build_model(tiny_config(*opts)).backbone.body.checkpoint_activations


def resnet(depth, on):
    spec = ResNetOptions(depth, FrozenBatchNorm2d, stem_channels=8, res2_channels=16)
    return ResNet(spec, (2, 3, 4, 5), freeze_at=2, checkpoint_activations=on)


def timm_backbone(name, on):
    pytest.importorskip("timm", reason="timm is not installed")
    return TimmBackbone(name, (4, 8), frozen_norm=True, checkpoint_activations=on)


def timm_vit(name, on):
    pytest.importorskip("timm", reason="timm is not installed")
    return TimmViT(name, ViTOptions(window=3, drop_path=0.5, checkpoint_activations=on))


def vit(on):
    return ViT(16, 3, 2, 64, ViTOptions(2, 1, 0.5, checkpoint_activations=on))


# Constructors, the side of images, and the largest part of the numbers that is still saved.
@pytest.mark.parametrize(
    ("build", "side", "part"),
    [
        (partial(resnet, 18), 64, 0.4),
        (partial(timm_backbone, "test_convnext"), 32, 1.0),
        pytest.param(partial(timm_backbone, "test_efficientnet"), 32, 1.0, marks=pytest.mark.slow),
        pytest.param(partial(timm_vit, "test_vit"), 96, 0.3, marks=pytest.mark.slow),
        (vit, 64, 1.0),
    ],
)
def test_checkpointing_saves_less_and_keeps_gradients(build, side, part):
    plain, saving = (build(on).train() for on in (False, True))
    saving.load_state_dict(plain.state_dict())
    x = torch.randn(2, 3, side, side)
    results = []
    for backbone in (plain, saving):
        torch.manual_seed(0)  # drops the same paths
        results.append(step(backbone, x))
    (expected, limit), (maps, kept) = results
    assert kept < part * limit
    torch.testing.assert_close(maps, expected)
    for ours, theirs in zip(saving.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
