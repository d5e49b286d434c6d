"""MobileNetV3 computes what torchvision's extractor computes."""

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
    torch.testing.assert_close(maps, [expected["0"], expected["1"]])
