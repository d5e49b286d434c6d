"""The other libraries' models: each is what its own documentation fine-tunes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torchvision.ops import FrozenBatchNorm2d

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "learning_curve"))
import torchvision_maskrcnn as program


def test_weights_of_a_file_are_trained_as_those_that_are_downloaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Norms and the first layers are frozen, as `weights="COCO_V1"` has them."""
    monkeypatch.setattr(torch, "load", lambda *_, **__: {})
    monkeypatch.setattr(nn.Module, "load_state_dict", lambda *_: None)
    with torch.device("meta"):
        model = program.build("mask_rcnn.pth", 3)
    body = model.backbone.body
    norms = [module for module in body.modules() if isinstance(module, FrozenBatchNorm2d)]
    assert norms
    assert all(norm.eps == 0 for norm in norms)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    trained = {name.partition(".")[0] for name, p in body.named_parameters() if p.requires_grad}
    assert trained == {"layer2", "layer3", "layer4"}
