"""How pixels are counted follows from weights where a YAML file does not say it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest
import torch
import yaml
from states import (
    detectron2,
    maskrcnn_benchmark,
)
from yacs.config import CfgNode

from detlite.config import load_config
from detlite.config.maskrcnn_benchmark import COUNTING
from detlite.conversion import source_of
from detlite.engine.checkpoint import CheckpointError
from detlite.engine.weights import (
    build_model_from_checkpoint,
    load_config_for_weights,
    load_weights,
)
from detlite.modeling.rcnn import build_model


def test_fbnet_of_maskrcnn_benchmark(tiny_config, tmp_path):
    roi = "MODEL.ROI_MASK_HEAD."
    cfg = tiny_config(
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
    assert source_of(state) == "maskrcnn-benchmark"
    load_weights(other, tmp_path / "fbnet.pth")
    assert len(other.categories) == 3
    for name, value in other.state_dict().items():
        assert torch.equal(value, model.state_dict()[name])
    assert source_of(model.state_dict()) is None  # our own names
    with pytest.raises(CheckpointError, match=r"has no config.*name the YAML file"):
        build_model_from_checkpoint(tmp_path / "fbnet.pth")
    (tmp_path / "fbnet.yaml").write_text(_without(cfg, COUNTING))
    built, other = build_model_from_checkpoint(tmp_path / "fbnet.pth", (), tmp_path / "fbnet.yaml")
    assert built.MODEL.INCLUSIVE_BOXES
    assert other.backbone.body.first.bn.eps == 1e-5  # its norm is not frozen


def _without(cfg: CfgNode, names: Iterable[str]) -> str:
    """A config as a file that leaves out some keys."""
    tree = yaml.safe_load(cfg.dump())
    for name in names:
        *sections, leaf = name.split(".")
        node = tree
        for section in sections:
            node = node[section]
        del node[leaf]
    return yaml.safe_dump(tree)


def _value(cfg: CfgNode, name: str) -> Any:
    for part in name.split("."):
        cfg = cfg[part]
    return cfg


def test_file_of_maskrcnn_benchmark_follows_its_weights(tmp_path):
    weights, file = tmp_path / "w.pth", tmp_path / "e2e.yaml"
    torch.save(maskrcnn_benchmark(), weights)
    cfg, model = build_model_from_checkpoint(weights, ["MODEL.DEVICE", "cpu"])
    file.write_text(_without(cfg, COUNTING))
    found, other = build_model_from_checkpoint(weights, (), file)
    assert {name: _value(found, name) for name in COUNTING} == COUNTING
    image = torch.rand(3, 64, 80)
    [wanted], [ours] = model.detect([image]), other.detect([image])
    assert {name: value.tolist() for name, value in ours.items()} == {
        name: value.tolist() for name, value in wanted.items()
    }
    # without the weights, or with what the file or an override says, nothing changes
    assert not load_config_for_weights(file).MODEL.INCLUSIVE_BOXES
    options = ["MODEL.WEIGHT", str(weights), "INPUT.RESIZE", "round"]
    assert load_config_for_weights(file, options).INPUT.RESIZE == "round"
    file.write_text(_without(cfg, COUNTING.keys() - {"MODEL.RPN.ANCHOR_ROUNDING"}))
    file.write_text(file.read_text().replace("ANCHOR_ROUNDING: cell", "ANCHOR_ROUNDING: none"))
    cfg = load_config_for_weights(file, options)
    assert (cfg.MODEL.RPN.ANCHOR_ROUNDING, cfg.MODEL.INCLUSIVE_BOXES) == ("none", True)


def test_weights_in_a_model_that_counts_otherwise_are_a_warning(tmp_path, caplog):
    torch.save(maskrcnn_benchmark(), tmp_path / "w.pth")
    options = ["MODEL.DEVICE", "cpu", "MODEL.INCLUSIVE_BOXES", False]
    build_model_from_checkpoint(tmp_path / "w.pth", options)
    assert "counts pixels in another way" in caplog.text
    caplog.clear()
    build_model_from_checkpoint(tmp_path / "w.pth", options[:2])
    assert not caplog.text


def test_file_does_not_follow_other_weights(tiny_config, tmp_path):
    (tmp_path / "d2.yaml").write_text(_without(tiny_config(), COUNTING))
    torch.save(detectron2(), tmp_path / "w.pth")
    options = ["MODEL.WEIGHT", str(tmp_path / "w.pth")]
    plain = load_config(tmp_path / "d2.yaml", options)
    assert load_config_for_weights(tmp_path / "d2.yaml", options) == plain
