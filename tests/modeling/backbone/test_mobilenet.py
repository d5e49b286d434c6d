"""MobileNetV3 computes what torchvision's extractor computes."""

import pytest
import torch
from torch import nn
from torchvision.models.detection.backbone_utils import mobilenet_backbone

from detlite.modeling.backbone.mobilenet import MobileNetV3


def test_maps_equal_torchvision():
    torch.manual_seed(0)
    reference = mobilenet_backbone(
        backbone_name="mobilenet_v3_large", weights=None, fpn=True, norm_layer=nn.BatchNorm2d
    ).eval()
    body = MobileNetV3(nn.BatchNorm2d).eval()
    body.load_state_dict(reference.body.state_dict())
    image = torch.rand(2, 3, 64, 96)
    with torch.no_grad():
        expected, maps = reference.body(image), body(image)
    assert [m.shape[1] for m in maps] == list(MobileNetV3.channels)
    assert torch.equal(maps[0], expected["0"])
    assert torch.equal(maps[1], expected["1"])


@pytest.mark.parametrize(("freeze_at", "layers"), [(0, 0), (1, 2), (3, 7), (5, 16)])
def test_frozen_parts(freeze_at, layers):
    body = MobileNetV3(nn.BatchNorm2d, freeze_at)
    frozen = [not any(p.requires_grad for p in layer.parameters()) for layer in body]
    assert frozen == [True] * layers + [False] * (len(body) - layers)
    norms = [any(isinstance(m, nn.BatchNorm2d) for m in layer.modules()) for layer in body]
    assert norms == [not value for value in frozen]
