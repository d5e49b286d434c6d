"""ViTDet: the inferred config, and models that are not converted."""

import pytest
import torch
import yaml

from detlite.conversion.convert import convert, recognize
from detlite.modeling.backbone import vit
from tests.conversion.recorded_state_dicts import state_dict


@pytest.fixture
def narrow(monkeypatch):
    """Make ViT-T as narrow as the recorded models: channels, blocks and heads."""
    monkeypatch.setitem(vit.SIZES, "T", (16, 4, 2))


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("cascade", [False, True])
def test_config(cascade):
    state = state_dict("detectron2, ViTDet" + " cascade" * cascade)
    assert recognize(state) == "detectron2"
    config = yaml.safe_load(convert(state, "detectron2").config)
    assert {key: config[key] for key in config if "VIT" in key or "NORM" in key} == {
        "MODEL.VIT.WINDOW": 3,
        "MODEL.VIT.GLOBAL_BLOCKS": 2,
        "MODEL.VIT.IMAGE_SIZE": 128,
        "MODEL.VIT.DROP_PATH": 0.1,
        "MODEL.FPN.NORM": "LN",
        "MODEL.ROI_BOX_HEAD.NORM": "LN",
        "MODEL.ROI_MASK_HEAD.NORM": "LN",
    }
    assert config["MODEL.BACKBONE.CONV_BODY"] == "ViT-T-SFP"
    assert config["DATALOADER.SIZE_DIVISIBILITY"] == config["INPUT.MAX_SIZE_TEST"] == 128
    assert bool(config["MODEL.ROI_HEADS.CASCADE_IOUS"]) == cascade
    assert config["MODEL.RPN.NUM_CONVS"] == 2


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"roi_heads.box_predictor.cls_score.weight": (1204, 12),
          "roi_heads.box_predictor.bbox_pred.weight": (4812, 12)}, "LVIS classes with sigmoids"),
        ({"backbone.net.patch_embed.proj.weight": (20, 3, 16, 16)}, "20 channels, 4 blocks and 2"),
        ({"backbone.net.blocks.0.attn.rel_pos_h": None}, "have no relative positions"),
        ({"backbone.net.blocks.2.attn.rel_pos_h": (15, 8)}, "not evenly spaced"),
    ],
)  # fmt: skip
def test_unknown_models(change, message):
    state = state_dict("detectron2, ViTDet")
    for name, shape in change.items():
        if shape is None:
            del state[name]
        else:
            state[name] = torch.zeros(shape)
    with pytest.raises(ValueError, match=message):
        convert(state, "detectron2")
