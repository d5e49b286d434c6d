"""RegNets of detectron2: the model of timm, and the settings that follow from the norms."""

import pytest
import torch
import yaml

from detlite.conversion.convert import convert
from detlite.conversion.regnet import REGNETS
from tests.conversion.recorded_state_dicts import state_dict


@pytest.mark.parametrize("size", REGNETS)
def test_channels_equal_those_of_timm(size):
    timm = pytest.importorskip("timm", reason="timm is not installed")
    for kind, channels in zip("xy", REGNETS[size], strict=True):
        with torch.device("meta"):
            net = timm.create_model(f"regnet{kind}_{size}")
        assert tuple(info["num_chs"] for info in net.feature_info[1:]) == channels
        assert (type(net.s1.b1.se).__name__ != "Identity") == (kind == "y")


@pytest.mark.parametrize(
    ("name", "backbone", "frozen", "norm"),
    [
        ("RegNetX", "timm/regnetx_002-FPN", True, ""),
        ("RegNetY LSJ", "timm/regnety_002-FPN", False, "BN"),
    ],
)
def test_config_of_a_regnet(name, backbone, frozen, norm):
    config = yaml.safe_load(convert(state_dict(f"detectron2, {name}"), "detectron2").config)
    assert config["MODEL.BACKBONE.CONV_BODY"] == backbone
    assert config["MODEL.RESNETS.NORM"] == ("FrozenBN" if frozen else "BN")
    assert config["INPUT.PIXEL_STD"] == [57.375, 57.12, 58.395]
    assert config["MODEL.RPN.NUM_CONVS"] == (1 if frozen else 2)
    for part in ("FPN", "ROI_BOX_HEAD", "ROI_MASK_HEAD"):
        assert config[f"MODEL.{part}.NORM"] == norm
    assert not any(key.startswith("MODEL.RESNETS.STRIDE") for key in config)


def test_unknown_regnet():
    state = state_dict("detectron2, RegNetX")
    state["backbone.bottom_up.s2.b1.f.c.weight"] = torch.zeros(57, 56, 1, 1)
    with pytest.raises(ValueError, match=r"RegNet with stages of \[24, 57, 152, 368\] channels"):
        convert(state, "detectron2")
