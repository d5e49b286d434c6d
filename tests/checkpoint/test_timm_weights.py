"""Classifiers of timm as MODEL.WEIGHT."""

import sys
from copy import deepcopy
from dataclasses import replace
from functools import partial

import pytest
import torch
from torchvision.models import resnet50

from detlite.checkpoint.files import read_checkpoint, save_checkpoint
from detlite.checkpoint.loading import load_weights, read_weights
from detlite.checkpoint.weight_catalog import timm_pixels
from detlite.errors import CheckpointError
from detlite.modeling.build import build_model
from tests.engine.toy import assert_equal

timm = pytest.importorskip("timm", reason="timm is not installed")


def detector(tiny_config, name="test_convnext", *opts):
    return build_model(tiny_config("MODEL.BACKBONE.CONV_BODY", f"timm/{name}-FPN", *opts))


@pytest.mark.parametrize(
    ("name", "ending", "freeze_at"),
    [("convnext", "pth", 0), ("resnet", "safetensors", 2), ("efficientnet", "pth", 2)],
)
def test_only_the_backbone_is_loaded(tiny_config, tmp_path, name, ending, freeze_at):
    name = f"test_{name}"
    state, file = timm.create_model(name).state_dict(), tmp_path / f"{name}.{ending}"
    if ending == "pth":
        torch.save(state, file)
    else:
        pytest.importorskip("safetensors.torch").save_file(state, file)
    model = detector(tiny_config, name, "MODEL.BACKBONE.FREEZE_CONV_BODY_AT", freeze_at)
    before = deepcopy(model.state_dict())
    load_weights(model, read_checkpoint(file))
    prefix = "backbone.body.net."
    for path, value in model.state_dict().items():
        expected = state[path.removeprefix(prefix)] if path.startswith(prefix) else before[path]
        assert torch.equal(value, expected), path


@pytest.mark.parametrize("source", [None, "timm"])
def test_resnets_fit_both_kinds_of_backbone(saved, source):
    checkpoint = read_checkpoint(saved(timm.create_model("resnet18").state_dict()), source)
    assert checkpoint.backbone_only
    assert "backbone.body.res5.1.conv2.weight" in checkpoint.model
    assert "backbone.body.net.layer4.1.conv2.weight" in checkpoint.timm_backbone


def test_converted_checkpoint_equals_the_original(tiny_config, saved, tmp_path):
    file = saved(timm.create_model("test_convnext").state_dict())
    save_checkpoint(replace(read_checkpoint(file, "timm"), path=tmp_path / "converted.pth"))
    first, second = detector(tiny_config), detector(tiny_config)
    load_weights(first, read_checkpoint(file))
    load_weights(second, read_checkpoint(tmp_path / "converted.pth"))
    assert_equal(first.backbone.body.state_dict(), second.backbone.body.state_dict())


HALVES, IMAGENET = ([0.5] * 3, [0.5] * 3), ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])


@pytest.mark.parametrize(
    ("library", "bgr", "mean", "std", "expected"),
    [
        ("timm", False, *HALVES, None),
        ("timm", False, [0.505, 0.495, 0.5], [0.498] * 3, None),
        ("timm", False, *IMAGENET, HALVES),
        ("timm", True, [127.5] * 3, [127.5] * 3, HALVES),  # the channels have another order
        ("timm", False, [0.4], [0.2], None),  # one channel
        ("torchvision", False, *IMAGENET, None),
        ("torchvision", True, [102.98, 115.95, 122.77], [1.0] * 3, IMAGENET),  # Caffe's
    ],
)
def test_other_pixel_statistics(tiny_config, tmp_path, caplog, library, bgr, mean, std, expected):
    """Classifiers have the statistics that their library lists; the default's are Caffe's."""
    body, build = {
        "timm": ("timm/test_resnet-FPN", partial(timm.create_model, "test_resnet")),
        "torchvision": ("R-50-FPN", resnet50),
    }[library]
    torch.save(build().state_dict(), tmp_path / "w.pth")
    converted = replace(read_checkpoint(tmp_path / "w.pth", library), path=tmp_path / "own.pth")
    save_checkpoint(converted)
    for name in ("w.pth", "own.pth"):
        read_weights(tiny_config(
            "MODEL.WEIGHT", str(tmp_path / name), "MODEL.BACKBONE.CONV_BODY", body,
            "INPUT.TO_BGR255", bgr, "INPUT.PIXEL_MEAN", mean, "INPUT.PIXEL_STD", std,
        ))  # fmt: skip
    advice = "INPUT.TO_BGR255 False INPUT.PIXEL_MEAN {} INPUT.PIXEL_STD {}"
    warned = [record.message for record in caplog.records if "other pixel values" in record.message]
    # A converted file does not say that it is of torchvision.
    assert len(warned) == (0 if not expected else 1 if library == "torchvision" else 2)
    assert not expected or all(advice.format(*expected) in message for message in warned)


def test_pixel_statistics_of_names():
    expected = {
        "tf_efficientnet_lite1": HALVES,
        "resnet18.a1_in1k": IMAGENET,
        "vit_base_patch16_224.augreg_in21k": HALVES,
        "vit_base_patch16_224.mae": IMAGENET,
        "unknown": None,
        "resnet18.unknown": None,
    }
    assert {name: timm_pixels(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\x08\0\0\0\0\0\0\0{}      ..", "is not a checkpoint"),
     (b"", "needs a package: pip install safetensors")],
)  # fmt: skip
def test_unusable_safetensors(tmp_path, monkeypatch, content, message):
    if content:
        pytest.importorskip("safetensors")
    else:
        monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    (tmp_path / "w.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"w\.safetensors: {message}"):
        read_checkpoint(tmp_path / "w.safetensors")
