import pytest
import torch
from torch import nn

from detlite.config import ConfigError
from detlite.engine.solver import build_optimizer
from detlite.modeling.backbone import BACKBONES, Backbone
from detlite.modeling.build import META_ARCHITECTURES, build_model, torch_device
from detlite.modeling.retinanet import RetinaNet
from tests.modeling.family import RETINANET


def test_seed_determines_the_weights(tiny_config):
    states = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        states.append(build_model(tiny_config()).state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert any(not torch.equal(states[0][name], states[2][name]) for name in states[0])


ABSENT = [name for name in ("mps", "xpu") if not torch.get_device_module(name).is_available()]


@pytest.mark.parametrize("name", ["nonsense", "cuda:9999", "privateuseone", *ABSENT])
def test_unavailable_device(tiny_config, name):
    with pytest.raises(ConfigError, match=r"MODEL\.DEVICE"):
        build_model(tiny_config("MODEL.DEVICE", name))


def test_automatic_device():
    assert torch_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("MODEL.META_ARCHITECTURE", "detector"),
        ("MODEL.ROI_HEADS.SAMPLER", "sampler"),
        ("MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR", "box"),
        ("MODEL.ROI_BOX_HEAD.PREDICTOR", "box"),
        ("MODEL.ROI_BOX_HEAD.POOLER_TYPE", "pooler"),
        ("MODEL.ROI_MASK_HEAD.FEATURE_EXTRACTOR", "mask"),
        ("MODEL.ROI_MASK_HEAD.PREDICTOR", "mask"),
        ("MODEL.ROI_MASK_HEAD.POOLER_TYPE", "pooler"),
        ("MODEL.RETINANET.BOX_LOSS", "box loss"),
        ("SOLVER.OPTIMIZER", "optimizer"),
    ],
)
def test_unknown_names_name_the_key(tiny_config, key, kind):
    retinanet = [item for pair in RETINANET.items() for item in pair]
    cfg = tiny_config(*(retinanet if "RETINANET" in key else ()), key, "other")
    with pytest.raises(ConfigError, match=rf"{key}: unknown {kind}.* 'other'; .*known: .*"):
        build_optimizer(cfg, build_model(cfg))


class Body(nn.Module):
    """A body of an own backbone, which freezes nothing."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=8, padding=1)

    def forward(self, x):
        return [self.conv(x)] * 5


class Own(RetinaNet):
    """A detector that detects boxes only."""

    supported_outputs = ()


@pytest.mark.parametrize(
    ("key", "value", "implemented"),
    [
        ("MODEL.MASK_ON", True, {"required_targets": ("masks",)}),
        ("MODEL.KEYPOINT_ON", True, {"required_targets": ("keypoints",)}),
        ("MODEL.LOAD_PROPOSALS", True, {"takes_proposals": True}),
        ("TEST.EXTRA_OUTPUTS", ("class_scores",), {"supported_outputs": ("class_scores",)}),
        ("MODEL.BACKBONE.FREEZE_CONV_BODY_AT", 3, None),
    ],
)
def test_keys_that_own_parts_ignore_are_refused(tiny_config, monkeypatch, key, value, implemented):
    def build_own(cfg):
        model = META_ARCHITECTURES.get("RetinaNet")(cfg)
        model.__class__ = Own
        if implemented is None and freeze:
            model.backbone.body.conv.requires_grad_(False)
        return model

    def build_body(cfg):
        return Backbone(Body(), nn.Identity(), 8, strides=(8, 16, 32, 64, 128), pooled=1)

    monkeypatch.setitem(META_ARCHITECTURES._builders, "Own", build_own)
    monkeypatch.setitem(BACKBONES._builders, "OwnBody", build_body)
    opts = ["MODEL.META_ARCHITECTURE", "Own", "MODEL.BACKBONE.CONV_BODY", "OwnBody"]
    opts += ["MODEL.MASK_ON", False]
    freeze = False
    build_model(tiny_config(*opts))
    cfg = tiny_config(*opts, key, value)
    part = "the backbone OwnBody" if implemented is None else "the detector Own"
    with pytest.raises(ConfigError, match=rf"{key} is set, but {part} ignores it: .*implement it"):
        build_model(cfg)
    freeze = True
    for name, names in (implemented or {}).items():
        monkeypatch.setattr(Own, name, names)
    build_model(cfg)
