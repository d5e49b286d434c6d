"""Conversion of detectron2, its RegNets and ViTDets: layout, config, and unknown models."""

import pytest
import torch

from detlite.conversion.convert import convert, recognize
from detlite.conversion.detectron2.source import order_anchors_by_ratio
from detlite.conversion.regnet import REGNETS
from detlite.errors import CheckpointError
from detlite.modeling.backbone import vit
from detlite.modeling.preprocessing import prepare_proposals
from tests.conversion.recorded_state_dicts import CLASSES, RES2, config_of, state_dict

DIVIDED = [57.375, 57.12, 58.395]  # standard deviation of pixels


@pytest.fixture
def narrow(monkeypatch):
    """Make ViT-T as narrow as the recorded models: channels, blocks and heads."""
    monkeypatch.setitem(vit.SIZES, "T", (16, 4, 2))


def norms(name):
    return {f"MODEL.{part}.NORM": name for part in ("FPN", "ROI_BOX_HEAD", "ROI_MASK_HEAD")}


@pytest.mark.parametrize(
    ("anchors", "ratios", "order"),
    [
        (3, None, [0, 1, 2]),
        (6, None, [0, 3, 1, 4, 2, 5]),  # two sizes of three ratios
        (5, None, [0, 1, 2, 3, 4]),  # one size of five
        (8, 4, [0, 4, 1, 5, 2, 6, 3, 7]),
        (6, 6, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_order_of_anchors(anchors, ratios, order):
    before = {
        f"rpn.head.{layer}.{leaf}": torch.randn(values * anchors, *shape)
        for layer, values in (("cls_logits", 1), ("bbox_pred", 4))
        for leaf, shape in (("weight", (7, 1, 1)), ("bias", ()))
    }
    state = dict(before)
    order_anchors_by_ratio(state, ratios)
    for name, values in before.items():
        expected = values.unflatten(0, (anchors, -1))[order].flatten(0, 1)
        assert torch.equal(state[name], expected), name


@pytest.mark.parametrize(
    ("model", "keys"),
    [
        ("DC5", {
            "MODEL.BACKBONE.CONV_BODY": "R-50-C5", "MODEL.RESNETS.RES5_DILATION": 2,
            "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION": 7, "MODEL.ROI_MASK_HEAD.RESOLUTION": 28,
            "MODEL.RPN.PRE_NMS_TOP_N_TEST": 6000,
        }),
        ("X-101-FPN", {
            "MODEL.RESNETS.NUM_GROUPS": 2, "MODEL.RESNETS.WIDTH_PER_GROUP": RES2 // 4,
            "MODEL.RESNETS.STRIDE_IN_1X1": False, "INPUT.PIXEL_STD": DIVIDED,
        }),
        ("RegNetX", {
            "MODEL.BACKBONE.CONV_BODY": "timm/regnetx_002-FPN", "MODEL.RESNETS.NORM": "FrozenBN",
            "INPUT.PIXEL_STD": DIVIDED, "MODEL.RPN.NUM_CONVS": 1, **norms(""),
        }),
        ("RegNetY LSJ", {
            "MODEL.BACKBONE.CONV_BODY": "timm/regnety_002-FPN", "MODEL.RESNETS.NORM": "BN",
            "INPUT.PIXEL_STD": DIVIDED, "MODEL.RPN.NUM_CONVS": 2, **norms("BN"),
        }),
        *(
            (f"ViTDet{cascade}", {
                "MODEL.BACKBONE.CONV_BODY": "ViT-T-SFP", "MODEL.VIT.WINDOW": 3,
                "MODEL.VIT.GLOBAL_BLOCKS": 2, "MODEL.VIT.IMAGE_SIZE": 128,
                "MODEL.VIT.DROP_PATH": 0.1, "DATALOADER.SIZE_DIVISIBILITY": 128,
                "INPUT.MAX_SIZE_TEST": 128, "MODEL.RPN.NUM_CONVS": 2, **norms("LN"),
            })
            for cascade in ("", " cascade")
        ),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("narrow")
def test_config(model, keys):
    state = state_dict(f"detectron2, {model}")
    assert recognize(state) == "detectron2"
    config = config_of(state, "detectron2")
    assert keys.items() <= config.items()
    assert bool(config["MODEL.ROI_HEADS.CASCADE_IOUS"]) == ("cascade" in model)
    if model.startswith("RegNet"):
        assert not any(key.startswith("MODEL.RESNETS.STRIDE") for key in config)


@pytest.mark.parametrize("agnostic", [False, True])
def test_background_is_moved_first(agnostic):
    state = state_dict("detectron2, FPN")
    for name in ("roi_heads.mask_head.predictor.weight", "roi_heads.mask_head.predictor.bias"):
        if agnostic:  # the mask is repeated for each class
            state[name] = state[name][:1]
    model = convert(state, "detectron2").model
    for leaf in ("weight", "bias"):
        original = state[f"roi_heads.box_predictor.cls_score.{leaf}"]
        assert torch.equal(model[f"roi_heads.box.predictor.cls_score.{leaf}"], original.roll(1, 0))
        boxes = model[f"roi_heads.box.predictor.bbox_pred.{leaf}"]
        assert torch.equal(boxes[4:], state[f"roi_heads.box_predictor.bbox_pred.{leaf}"])
        masks = model[f"roi_heads.mask.predictor.mask_fcn_logits.{leaf}"]
        assert (masks[1:] == state[f"roi_heads.mask_head.predictor.{leaf}"]).all()
        assert (len(boxes), len(masks)) == (4 * CLASSES, CLASSES)


@pytest.mark.parametrize("name", ["FPN", "C4"])
@torch.no_grad()
def test_fast_rcnn_needs_proposals(name, built):
    state = state_dict(f"detectron2, {name}")
    fast = {name: v for name, v in state.items() if not name.startswith("proposal_generator.")}
    models = [built(state)[1], built(fast)[1]]
    boxes = torch.tensor([[5.0, 5, 50, 50], [10, 20, 90, 60]])
    proposals = prepare_proposals([boxes], 1)
    images = models[0].normalizer([torch.rand(3, 64, 96)])
    expected, detections = (
        model.roi_heads.box.predict(model.backbone(images.pixels), proposals, images.sizes, False)
        for model in models
    )
    assert models[1].takes_proposals
    assert detections.valid.any()
    assert torch.equal(detections.boxes, expected.boxes)
    assert torch.equal(detections.scores, expected.scores)


def test_towers_that_start_with_a_norm(built):
    state = state_dict("detectron2, RetinaNet GN")
    for tower in ("cls", "bbox"):
        del state[f"head.{tower}_subnet.0.weight"]
    with pytest.raises(CheckpointError, match="does not fit the model"):
        built(state, "MODEL.GROUP_NORM.NUM_GROUPS", 4)


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
def test_unknown_transformers(change, message):
    state = state_dict("detectron2, ViTDet")
    for name, shape in change.items():
        if shape is None:
            del state[name]
        else:
            state[name] = torch.zeros(shape)
    with pytest.raises(ValueError, match=message):
        convert(state, "detectron2")
