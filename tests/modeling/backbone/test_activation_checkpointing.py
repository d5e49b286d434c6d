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

KEY = "MODEL.BACKBONE.CHECKPOINT_ACTIVATIONS"


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

    class Block(nn.Conv2d):
        def forward(self, x):
            calls.append(torch.is_grad_enabled())
            return super().forward(x)

    block, x = Block(3, 3, 1), torch.randn(1, 3, 4, 4)
    checkpoint_activations(block, x).sum().backward()
    assert len(calls) == 2
    with torch.no_grad():
        checkpoint_activations(block, x)
    assert calls[2:] == [False]
    checkpoint_activations(block.requires_grad_(False), x.requires_grad_()).sum().backward()
    assert len(calls) == 4


def test_the_losses_of_a_detector_are_the_same(tiny_config, make_batch):
    batch = make_batch(2, 1)
    models = [build_model(tiny_config(KEY, flag)).train() for flag in (False, True)]
    models[1].load_state_dict(models[0].state_dict())
    assert models[1].backbone.body.checkpoint_activations
    losses = []
    for model in models:
        torch.manual_seed(1)
        losses.append(model(*batch))
    torch.testing.assert_close(*losses)


def resnet(norm, depth, on):
    spec = ResNetOptions(depth, norm, stem_channels=8, res2_channels=16)
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
        (partial(resnet, nn.BatchNorm2d, 18), 64, 0.4),
        (partial(resnet, FrozenBatchNorm2d, 50), 64, 0.4),
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
    for _ in range(2):  # the second step uses the statistics of the first
        results = []
        for backbone in (plain, saving):
            torch.manual_seed(0)  # drops the same paths
            results.append(step(backbone, x))
        (expected, limit), (maps, kept) = results
        assert kept < part * limit
        torch.testing.assert_close(maps, expected)
    for ours, theirs in zip(saving.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(saving.state_dict(), plain.state_dict())
