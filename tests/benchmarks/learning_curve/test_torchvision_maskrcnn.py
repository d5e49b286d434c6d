"""torchvision's models in the learning curves."""

import pytest
import torch
from torch import nn
from torchvision.ops import FrozenBatchNorm2d

from benchmarks.learning_curve import torchvision_maskrcnn as program


def test_same_layers_are_frozen_as_with_downloaded_weights(monkeypatch):
    monkeypatch.setattr(torch, "load", lambda *_, **__: {})
    monkeypatch.setattr(nn.Module, "load_state_dict", lambda *_: None)
    with torch.device("meta"):
        model = program.build("mask_rcnn.pth", 3)
    backbone = model.backbone.body
    norms = [module for module in backbone.modules() if isinstance(module, FrozenBatchNorm2d)]
    assert norms
    assert all(norm.eps == 0 for norm in norms)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    trained = {name.partition(".")[0] for name, p in backbone.named_parameters() if p.requires_grad}
    assert trained == {"layer2", "layer3", "layer4"}


def test_lite0_backbone_has_the_given_weights(tmp_path):
    timm = pytest.importorskip("timm", reason="timm is not installed")
    net = timm.create_model("tf_efficientnet_lite0", num_classes=0)
    state = {f"backbone.body.net.{name}": value for name, value in net.state_dict().items()}
    file = tmp_path / "lite0.pth"
    torch.save({"model": state}, file)
    backbone = program.Lite0(file).train()
    assert torch.equal(backbone.network.conv_stem.weight, net.conv_stem.weight)
    maps = backbone(torch.rand(1, 3, 128, 128))
    assert [tuple(one.shape[1:]) for one in maps.values()] == [
        (256, side, side) for side in (32, 16, 8, 4, 2)
    ]
    assert not any(isinstance(module, nn.BatchNorm2d) for module in backbone.modules())
    frozen = {name for name, p in backbone.network.named_parameters() if not p.requires_grad}
    assert {name.rpartition(".")[0][:8] for name in frozen} == {"conv_ste", "blocks.0", "blocks.1"}
