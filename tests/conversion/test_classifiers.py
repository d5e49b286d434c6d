"""ImageNet classifiers become backbones."""

import re

import pytest
import torch
import torchvision

from detlite.checkpoint.files import read_checkpoint
from detlite.checkpoint.loading import build_model_from_checkpoint, load_weights
from detlite.conversion.torchvision import TORCHVISION
from detlite.errors import CheckpointError
from detlite.modeling.build import build_model
from tests.conversion.recorded_state_dicts import RES2, STEM, StateDict, state_dict


def test_backbone_with_deformable_convolutions(tiny_config, saved):
    narrow = ["MODEL.BACKBONE.CONV_BODY", "R-50-FPN", "MODEL.RESNETS.WIDTH_PER_GROUP", 8]
    plain = build_model(tiny_config(*narrow))
    dcn = ["MODEL.RESNETS.STAGE_WITH_DCN", (False, False, True, True)]
    model = build_model(tiny_config(*narrow, *dcn))
    load_weights(model, read_checkpoint(saved(classifier(plain))))
    state = model.state_dict()
    for block, part in (("res3.0", ""), ("res4.2", "conv.")):
        original = plain.state_dict()[f"backbone.body.{block}.conv2.weight"] + 1
        assert torch.equal(state[f"backbone.body.{block}.conv2.{part}weight"], original)
    assert not state["backbone.body.res4.2.conv2.offset.weight"].any()


@pytest.mark.parametrize("norm", ["folded", "stored", "GN"])
def test_caffe2_classifier(norm, tiny_config, saved):
    """MSRA's models of Detectron, their copies for detectron2, and those with group norm."""
    state = state_dict("caffe2, classifier" + " GN" * (norm == "GN"))
    if norm == "stored":
        leaves = {"_bn_s": "_bn_gamma", "_bn_b": "_bn_beta"}
        state = {re.sub("_bn_[sb]$", lambda m: leaves[m[0]], n): v for n, v in state.items()}
        gammas = [name for name in state if name.endswith("_bn_gamma")]
        for name in gammas:
            state[name.replace("gamma", "running_mean")] = torch.randn_like(state[name])
            state[name.replace("gamma", "running_var")] = torch.rand_like(state[name])
    model = build_model(
        tiny_config(
            "MODEL.BACKBONE.CONV_BODY", "R-50-FPN",
            "MODEL.RESNETS.NORM", "GN" if norm == "GN" else "FrozenBN",
            "MODEL.RESNETS.STEM_OUT_CHANNELS", STEM, "MODEL.RESNETS.RES2_OUT_CHANNELS", RES2,
            "MODEL.RESNETS.WIDTH_PER_GROUP", RES2 // 4, "MODEL.GROUP_NORM.NUM_GROUPS", 4,
        )
    )  # fmt: skip
    load_weights(model, read_checkpoint(saved(state)))
    backbone = model.backbone.body
    suffix = {"folded": "bn_s", "stored": "bn_gamma", "GN": "gn_s"}[norm]
    shortcut = backbone.res3[0].downsample[1]
    assert torch.equal(shortcut.weight, state[f"res3_0_branch1_{suffix}"])
    if norm == "stored":
        assert torch.equal(shortcut.running_var, state["res3_0_branch1_bn_running_var"])
    if norm == "folded":
        assert (shortcut.running_var == 1).all()


def classifier(model: torch.nn.Module) -> StateDict:
    """Return the backbone of `model` with the names of torchvision's classifiers."""
    backbone = {n: v for n, v in model.state_dict().items() if n.startswith("backbone.body.")}
    depth = "resnet50" if "backbone.body.res2.0.conv3.weight" in backbone else "resnet18"
    with torch.device("meta"):
        original = getattr(torchvision.models, depth)().state_dict()
    names = TORCHVISION.rename({name: name for name in original})
    return {names[n]: v + 1 for n, v in backbone.items()} | {"fc.weight": torch.zeros(10, 4)}


def test_only_the_backbone_is_loaded(tiny_config, saved, tmp_path):
    model = build_model(tiny_config())
    before = {n: v.clone() for n, v in model.state_dict().items()}
    file = saved(classifier(model))
    load_weights(model, read_checkpoint(file))
    for name, value in model.state_dict().items():
        moved = name.startswith("backbone.body.")
        assert torch.equal(value, before[name] + 1 if moved else before[name]), name
    (tmp_path / "c.yaml").write_text(tiny_config().dump())
    for config, message in (
        (None, "has no config: it is a classifier, from which"),
        (tmp_path / "c.yaml", "a backbone only, so the heads would be random"),
    ):
        with pytest.raises(CheckpointError, match=message):
            build_model_from_checkpoint(file, config=config)


def test_c4_head_contains_the_last_stage(tiny_config, saved):
    checkpoint = read_checkpoint(saved(classifier(build_model(tiny_config()))))
    model = build_model(tiny_config(c4=True))
    load_weights(model, checkpoint)
    name = "res5.1.conv2.weight"
    value = model.state_dict()[f"roi_heads.box.feature_extractor.{name}"]
    assert torch.equal(value, checkpoint.model[f"backbone.body.{name}"])


def test_classifier_of_another_depth(tiny_config, saved):
    state = classifier(build_model(tiny_config())) | {"layer1.2.conv1.weight": torch.zeros(1)}
    with pytest.raises(CheckpointError, match=r"unknown to the model +backbone.body.res2.2.conv1"):
        load_weights(build_model(tiny_config()), read_checkpoint(saved(state)))
