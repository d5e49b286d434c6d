"""Weights bring the convention that they were trained by, and a config must not contradict it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from torchvision.models import detection
from yacs.config import CfgNode

from detlite.config import ConfigError, load_config
from detlite.conventions import CONVENTIONS
from detlite.conversion import detect_source
from detlite.conversion.checkpoint.files import (
    Checkpoint,
    CheckpointError,
    read_checkpoint,
    save_checkpoint,
)
from detlite.conversion.checkpoint.loading import (
    build_model_from_checkpoint,
    load_weights,
    read_weights,
)
from detlite.modeling.build import build_model
from tests.conversion.synthetic_state_dicts import caffe2, detectron2, maskrcnn_benchmark


def _torchvision():
    return detection.fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None).state_dict()


@pytest.fixture
def weights(tmp_path) -> Path:
    """A Mask R-CNN of maskrcnn-benchmark."""
    torch.save(maskrcnn_benchmark(), tmp_path / "w.pth")
    return tmp_path / "w.pth"


def _write(path: Path, cfg: CfgNode, convention: str | None = None) -> Path:
    """A config as a file that states this convention; None: none."""
    tree = yaml.safe_load(cfg.dump())
    del tree["MODEL"]["CONVENTION"]
    if convention is not None:
        tree["MODEL"]["CONVENTION"] = convention
    path.write_text(yaml.safe_dump(tree))
    return path


@pytest.mark.parametrize(
    ("make", "convention"),
    [
        (_torchvision, "torchvision"),
        (detectron2, "detectron2"),
        (maskrcnn_benchmark, "maskrcnn-benchmark"),
        (caffe2, "maskrcnn-benchmark"),
    ],
)
def test_weights_bring_their_convention(make, convention, tmp_path):
    torch.save(make(), tmp_path / "w.pth")
    checkpoint = read_checkpoint(tmp_path / "w.pth")
    assert checkpoint.convention == convention
    assert yaml.safe_load(checkpoint.config)["MODEL.CONVENTION"] == convention
    cfg, _ = read_weights(load_config(None, ["MODEL.WEIGHT", str(tmp_path / "w.pth")]))
    assert convention == cfg.MODEL.CONVENTION


def test_classifier_brings_none(tmp_path):
    body = {n: v for n, v in detectron2().items() if n.startswith("backbone.bottom_up.")}
    torch.save(body, tmp_path / "w.pth")
    given = load_config(None, ["MODEL.WEIGHT", str(tmp_path / "w.pth")])
    cfg, checkpoint = read_weights(given)
    assert checkpoint.backbone_only
    assert cfg == given


def test_without_weights_there_is_nothing_to_read():
    cfg = load_config()
    assert read_weights(cfg) == (cfg, None)


@torch.no_grad()
def test_file_of_maskrcnn_benchmark_follows_its_weights(weights, tmp_path):
    cfg, model = build_model_from_checkpoint(weights, ["MODEL.DEVICE", "cpu"])
    image = torch.rand(3, 64, 80)
    [wanted] = model.detect([image])
    for stated in (None, "", "maskrcnn-benchmark"):
        file = _write(tmp_path / "e2e.yaml", cfg, stated)
        found, other = build_model_from_checkpoint(weights, (), file)
        assert found.MODEL.CONVENTION == "maskrcnn-benchmark"
        [ours] = other.detect([image])
        assert len(ours.boxes) > 0
        for one, other in ((ours.boxes, wanted.boxes), (ours.scores, wanted.scores)):
            assert torch.equal(one, other)
        assert ours.mask_probs is None or torch.equal(ours.mask_probs, wanted.mask_probs)


def test_another_convention_is_refused_with_the_remedy(weights, tmp_path):
    options = ["MODEL.DEVICE", "cpu", "MODEL.CONVENTION", "detlite"]
    message = r"is detlite, but the weights in .*w\.pth follow that of maskrcnn-benchmark"
    with pytest.raises(ConfigError, match=message + ".*remove the key.*CONVENTION_OVERRIDE"):
        build_model_from_checkpoint(weights, options)
    cfg, _ = build_model_from_checkpoint(weights, options[:2])
    file = _write(tmp_path / "e2e.yaml", cfg, "detlite")
    with pytest.raises(ConfigError, match=message):
        build_model_from_checkpoint(weights, (), file)
    with pytest.raises(ConfigError, match=message):
        read_weights(load_config(file, ["MODEL.WEIGHT", str(weights)]))
    with pytest.raises(ConfigError, match=message):
        load_weights(build_model(load_config(file)), read_checkpoint(weights))


def test_a_single_field_may_differ(weights):
    options = ["MODEL.DEVICE", "cpu", "MODEL.CONVENTION_OVERRIDE", ["resize=round"]]
    cfg, _ = build_model_from_checkpoint(weights, options)
    assert cfg.MODEL.CONVENTION == "maskrcnn-benchmark"
    assert cfg.MODEL.CONVENTION_OVERRIDE == ("resize=round",)


def test_weights_of_no_known_convention_follow_the_file(tiny_config, tmp_path):
    cfg = tiny_config()
    torch.save(build_model(cfg).state_dict(), tmp_path / "w.pth")
    file = _write(tmp_path / "any.yaml", cfg, "detectron2")
    found, _ = build_model_from_checkpoint(tmp_path / "w.pth", (), file)
    assert found.MODEL.CONVENTION == "detectron2"


def test_own_weights_keep_the_convention_that_they_were_trained_by(tiny_config, tmp_path):
    path, state = tmp_path / "w.pth", build_model(tiny_config()).state_dict()
    save_checkpoint(Checkpoint(path, state, [], "", "torchvision", ["keypoint_center=0.5"]))
    file = _write(tmp_path / "a.yaml", tiny_config())
    found, model = build_model_from_checkpoint(path, (), file)
    assert found.MODEL.CONVENTION == "torchvision"
    assert found.MODEL.CONVENTION_OVERRIDE == ("keypoint_center=0.5",)
    assert model.convention == replace(CONVENTIONS["torchvision"], keypoint_center=0.5)
    # a file's own go before those of the weights
    options = ["MODEL.CONVENTION_OVERRIDE", ["resize=round"]]
    _, model = build_model_from_checkpoint(path, options, file)
    assert model.convention == replace(CONVENTIONS["torchvision"], resize="round")


def test_fbnet_of_maskrcnn_benchmark(tiny_config, tmp_path):
    """Its shapes do not say its operators, so a file does, but not the convention."""
    roi = "MODEL.ROI_MASK_HEAD."
    cfg = tiny_config(
        "MODEL.CONVENTION", "maskrcnn-benchmark",
        "MODEL.BACKBONE.CONV_BODY", "FBNet", "MODEL.FBNET.SCALE_FACTOR", 0.25,
        "MODEL.RPN.RPN_HEAD", "FBNet.rpn_head", "MODEL.FBNET.DET_HEAD_LAST_SCALE", -1.0,
        "MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR", "FBNet.roi_head",
        "MODEL.ROI_BOX_HEAD.PREDICTOR", "FastRCNNPredictor", roi + "POOLER_RESOLUTION", 6,
        roi + "FEATURE_EXTRACTOR", "FBNet.roi_head_mask", roi + "RESOLUTION", 12,
        roi + "PREDICTOR", "MaskRCNNConv1x1Predictor",
    )  # fmt: skip
    model, other = build_model(cfg), build_model(cfg)
    state = {}
    for name, value in model.state_dict().items():
        name = re.sub(r"^rpn\.head\.head\.", "rpn.head.0.head.", name)
        name = re.sub(r"^rpn\.head\.(cls|bbox)_", r"rpn.head.1.\1_", name)
        name = re.sub(r"\.feature_extractor\.(blocks|last)\.", r".feature_extractor.head.\1.", name)
        state[f"module.{name}"] = value
    torch.save({"model": state}, tmp_path / "fbnet.pth")
    assert detect_source(state) == "maskrcnn-benchmark"
    load_weights(other, read_checkpoint(tmp_path / "fbnet.pth"))
    assert len(other.categories) == 3
    for name, value in other.state_dict().items():
        assert torch.equal(value, model.state_dict()[name])
    assert detect_source(model.state_dict()) is None  # our own names
    with pytest.raises(CheckpointError, match=r"has no config.*name the YAML file"):
        build_model_from_checkpoint(tmp_path / "fbnet.pth")
    file = _write(tmp_path / "fbnet.yaml", cfg)
    built, other = build_model_from_checkpoint(tmp_path / "fbnet.pth", (), file)
    assert built.MODEL.CONVENTION == "maskrcnn-benchmark"
    assert other.backbone.body.first.bn.eps == 1e-5  # its norm is not frozen
