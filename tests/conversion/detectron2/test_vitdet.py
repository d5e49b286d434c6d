"""ViTDet's weights: their config, and their detections beside a second implementation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional as F

import detlite
from detlite.conversion.convert import convert, detect_source
from detlite.modeling.backbone import vit
from tests.conversion.detection_differences import as_dict, compare
from tests.conversion.detectron2.vitdet_reference import (
    CHANNELS,
    DEPTH,
    HEADS,
    ViTDetReference,
    calm,
    vitdet,
)

_SCORE = 0.02
_LOW_SCORE = 0.005  # less than one of 80 classes has by chance


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """ViT-T is as narrow as those of the reference. In float64 no detection is lost to the order of
    a sum."""
    monkeypatch.setitem(vit.SIZES, "T", (CHANNELS, DEPTH, HEADS))
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("cascade", [False, True])
def test_detections_are_those_of_a_second_implementation(cascade, tmp_path):
    state = {name: calm(name, value) for name, value in vitdet(cascade).items()}
    torch.save(state, tmp_path / "w.pth")
    opts = ["MODEL.ROI_HEADS.SCORE_THRESH", _SCORE, "MODEL.DEVICE", "cpu", "TEST.OPTIMIZE", False]
    model = detlite.load_checkpoint(tmp_path / "w.pth", opts).model
    coarse = [torch.randint(0, 256, (1, 3, h, w)).double() for h, w in ((9, 12), (12, 7))]
    images = [F.interpolate(x, scale_factor=10.5, mode="bilinear")[0].byte() for x in coarse]
    theirs = ViTDetReference(state, score_thresh=_SCORE)(images)
    for ours, wanted in zip(model.double().detect(images), theirs, strict=True):
        found = compare(as_dict(ours), wanted)
        assert found.count >= 20
        assert found.unmatched == 0
        assert found.box < 1e-3
        assert found.score < 1e-5
        assert found.mask < 1e-4


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("cascade", [False, True])
def test_the_config_is_that_of_vitdet(cascade):
    state = vitdet(cascade)
    assert detect_source(state) == "detectron2"
    config = convert(state, "detectron2").config
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
          "roi_heads.box_predictor.bbox_pred.weight": (4812, 12)}, "classes of LVIS by sigmoids"),
        ({"backbone.net.patch_embed.proj.weight": (20, 3, 16, 16)}, "20 channels, 4 blocks and 2"),
        ({"backbone.net.blocks.0.attn.rel_pos_h": None}, "have no relative positions"),
        ({"backbone.net.blocks.2.attn.rel_pos_h": (15, 8)}, "not evenly spread"),
    ],
)  # fmt: skip
def test_what_is_refused(change, message):
    state = vitdet()
    for name, shape in change.items():
        if shape is None:
            del state[name]
        else:
            state[name] = torch.zeros(shape)
    with pytest.raises(ValueError, match=message):
        convert(state, "detectron2")
