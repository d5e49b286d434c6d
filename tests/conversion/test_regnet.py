"""RegNets of detectron2: the model of timm."""

import pytest
import torch

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


def test_unknown_regnet():
    state = state_dict("detectron2, RegNetX")
    state["backbone.bottom_up.s2.b1.f.c.weight"] = torch.zeros(57, 56, 1, 1)
    with pytest.raises(ValueError, match=r"RegNet with stages of \[24, 57, 152, 368\] channels"):
        convert(state, "detectron2")
