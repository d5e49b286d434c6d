"""ViTDet: inferred config, and comparison with an independent implementation."""

import pytest
import torch
import yaml
from torch.nn import functional as F

import detlite
from detlite.conversion.checkpoint_source import recognize
from detlite.conversion.convert import convert
from detlite.modeling.backbone import vit
from tests.conversion.detection_differences import as_dict, compare
from tests.conversion.detectron2.vitdet_reference import (
    CHANNELS,
    DEPTH,
    HEADS,
    ViTDetReference,
    scale,
    vitdet,
)

_SCORE = 0.02


@pytest.fixture
def narrow(monkeypatch):
    """Make ViT-T as narrow as the reference, and use float64 as in test_reference_model."""
    monkeypatch.setitem(vit.SIZES, "T", (CHANNELS, DEPTH, HEADS))
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("cascade", [False, True])
def test_detections_equal_the_reference(cascade, tmp_path):
    state = {name: scale(name, value) for name, value in vitdet(cascade).items()}
    torch.save(state, tmp_path / "w.pth")
    opts = ["MODEL.ROI_HEADS.SCORE_THRESH", _SCORE, "MODEL.DEVICE", "cpu", "TEST.OPTIMIZE", False]
    model = detlite.load_checkpoint(tmp_path / "w.pth", opts).model
    coarse = [torch.randint(0, 256, (1, 3, h, w)).double() for h, w in ((9, 12), (12, 7))]
    images = [F.interpolate(x, scale_factor=10.5, mode="bilinear")[0].byte() for x in coarse]
    expected = ViTDetReference(state, score_thresh=_SCORE)(images)
    for detections, reference in zip(model.double().detect(images), expected, strict=True):
        difference = compare(as_dict(detections), reference)
        difference.check(20, box=1e-3, score=1e-5, mask=1e-4)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("cascade", [False, True])
def test_config(cascade):
    state = vitdet(cascade)
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
    state = vitdet()
    for name, shape in change.items():
        if shape is None:
            del state[name]
        else:
            state[name] = torch.zeros(shape)
    with pytest.raises(ValueError, match=message):
        convert(state, "detectron2")
