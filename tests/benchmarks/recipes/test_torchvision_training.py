"""torchvision's model with detlite's backbone."""

import pytest
import torch
from torch import nn

from benchmarks.recipes.torchvision_training import Lite0


def test_lite0_backbone_has_the_given_weights(tmp_path):
    timm = pytest.importorskip("timm", reason="timm is not installed")
    net = timm.create_model("tf_efficientnet_lite0", num_classes=0)
    state = {f"backbone.body.net.{name}": value for name, value in net.state_dict().items()}
    file = tmp_path / "lite0.pth"
    torch.save({"model": state}, file)
    backbone = Lite0(file).train()
    assert torch.equal(backbone.network.conv_stem.weight, net.conv_stem.weight)
    maps = backbone(torch.rand(1, 3, 128, 128))
    shapes = [tuple(one.shape[1:]) for one in maps.values()]
    assert shapes == [(256, side, side) for side in (32, 16, 8, 4, 2)]
    assert not any(isinstance(module, nn.BatchNorm2d) for module in backbone.modules())
