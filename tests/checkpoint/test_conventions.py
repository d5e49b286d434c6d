"""Conventions of checkpoints: they are applied, and a config must not contradict them."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from yacs.config import CfgNode

from detlite.checkpoint.contents import Checkpoint
from detlite.checkpoint.files import read_checkpoint, save_checkpoint
from detlite.checkpoint.loading import build_model_from_checkpoint, load_weights, read_weights
from detlite.config import ConfigError, load_config
from detlite.conventions import CONVENTIONS
from detlite.conversion.convert import recognize, unwrap
from detlite.errors import CheckpointError
from detlite.modeling.build import build_model
from tests.conversion.recorded_state_dicts import state_dict
from tests.modeling.family import family_config


@pytest.fixture
def weights(saved):
    """Write a Mask R-CNN of maskrcnn-benchmark."""
    return saved(state_dict("maskrcnn-benchmark, FPN"))


def _write(path: Path, cfg: CfgNode, convention: str | None = None) -> Path:
    """Write a config with this MODEL.CONVENTION; None: without the key."""
    tree = yaml.safe_load(cfg.dump())
    del tree["MODEL"]["CONVENTION"]
    if convention is not None:
        tree["MODEL"]["CONVENTION"] = convention
    path.write_text(yaml.safe_dump(tree))
    return path


def test_config_file_has_the_convention_of_the_weights(weights, tmp_path):
    cfg, _ = build_model_from_checkpoint(weights, ["MODEL.DEVICE", "cpu"])
    for convention in (None, "", "maskrcnn-benchmark"):
        file = _write(tmp_path / "e2e.yaml", cfg, convention)
        loaded, _ = build_model_from_checkpoint(weights, (), file)
        assert loaded.MODEL.CONVENTION == "maskrcnn-benchmark"


def test_other_convention_in_the_config(weights, tmp_path):
    cfg, _ = build_model_from_checkpoint(weights, ["MODEL.DEVICE", "cpu"])
    file = _write(tmp_path / "e2e.yaml", cfg, "detlite")
    message = r"is detlite, but the weights in .*w\.pth were trained with maskrcnn-benchmark: "
    for load in (
        lambda: build_model_from_checkpoint(weights, ["MODEL.CONVENTION", "detlite"]),
        lambda: build_model_from_checkpoint(weights, (), file),
        lambda: read_weights(load_config(file, ["MODEL.WEIGHT", str(weights)])),
    ):
        with pytest.raises(ConfigError, match=message + "remove the key.*CONVENTION_OVERRIDE"):
            load()
    with pytest.raises(ConfigError, match=message + "build the model with that"):
        load_weights(build_model(load_config(file)), read_checkpoint(weights))


def test_config_file_decides_an_unknown_convention(tiny_config, saved, tmp_path):
    cfg = tiny_config()
    file = _write(tmp_path / "any.yaml", cfg, "detectron2")
    loaded, _ = build_model_from_checkpoint(saved(build_model(cfg).state_dict()), (), file)
    assert loaded.MODEL.CONVENTION == "detectron2"


def test_convention_of_a_saved_checkpoint(tiny_config, tmp_path):
    path, state = tmp_path / "w.pth", build_model(tiny_config()).state_dict()
    save_checkpoint(Checkpoint(path, state, [], "", "torchvision", ["keypoint_center=0.5"]))
    file = _write(tmp_path / "a.yaml", tiny_config())
    loaded, model = build_model_from_checkpoint(path, (), file)
    assert loaded.MODEL.CONVENTION == "torchvision"
    assert loaded.MODEL.CONVENTION_OVERRIDE == ("keypoint_center=0.5",)
    assert model.convention == replace(CONVENTIONS["torchvision"], keypoint_center=0.5)
    # Fields of the config take precedence over fields of the weights.
    for own in ("resize=round", "keypoint_center=0.25"):
        _, model = build_model_from_checkpoint(path, ["MODEL.CONVENTION_OVERRIDE", [own]], file)
        expected = CONVENTIONS["torchvision"].override(["keypoint_center=0.5", own])
        assert model.convention == expected


def test_fbnet_of_maskrcnn_benchmark(tiny_config, tmp_path):
    """The config file determines the operators, and the weights the convention."""
    cfg = family_config(
        "fbnet, masks", tiny_config, "MODEL.CONVENTION", "maskrcnn-benchmark",
        "MODEL.FBNET.ARCH", "xirb16d_dsmask", "MODEL.FBNET.DET_HEAD_LAST_SCALE", -1.0,
        "MODEL.FBNET.BN_TYPE", "bn",
    )  # fmt: skip
    model, other = build_model(cfg), build_model(cfg)
    state = {}
    for name, value in model.state_dict().items():
        name = re.sub(r"^rpn\.head\.head\.", "rpn.head.0.head.", name)
        name = re.sub(r"^rpn\.head\.(cls|bbox)_", r"rpn.head.1.\1_", name)
        name = re.sub(r"\.feature_extractor\.(blocks|last)\.", r".feature_extractor.head.\1.", name)
        state[f"module.{name}"] = value
    torch.save({"model": state}, tmp_path / "fbnet.pth")
    assert recognize(unwrap(state).state) == "maskrcnn-benchmark"
    load_weights(other, read_checkpoint(tmp_path / "fbnet.pth"))
    assert len(other.categories) == 3
    for name, value in other.state_dict().items():
        assert torch.equal(value, model.state_dict()[name])
    assert recognize(model.state_dict()) is None  # names of detlite
    with pytest.raises(CheckpointError, match=r"has no config.*name the YAML file"):
        build_model_from_checkpoint(tmp_path / "fbnet.pth")
    file = _write(tmp_path / "fbnet.yaml", cfg)
    built, other = build_model_from_checkpoint(tmp_path / "fbnet.pth", (), file)
    assert built.MODEL.CONVENTION == "maskrcnn-benchmark"
    assert other.backbone.body.first.bn.eps == 1e-5  # the norm is not frozen
