"""Models are exported to torchvision only if torchvision detects the same with them."""

import pytest
import torch

from detlite.apps.export import torchvision
from detlite.apps.export.torchvision import build_torchvision_model, export_to_torchvision
from detlite.modeling import build_model
from tests.modeling.family import FAMILY

# Keys that make a model expressible in torchvision.
EXPORTABLE = [
    "MODEL.CONVENTION", "torchvision", "MODEL.RESNETS.NORM", "FrozenBN",
    "MODEL.RESNETS.STEM_OUT_CHANNELS", 64, "MODEL.RESNETS.RES2_OUT_CHANNELS", 64,
    "MODEL.RESNETS.STRIDE_IN_1X1", False, "MODEL.FPN.NORM", "", "MODEL.RPN.MIN_SIZE", 1e-3,
    "MODEL.ROI_BOX_HEAD.POOLER_TYPE", "ROIAlign", "MODEL.ROI_MASK_HEAD.POOLER_TYPE", "ROIAlign",
    "MODEL.ROI_BOX_HEAD.NORM", "", "MODEL.ROI_MASK_HEAD.NORM", "", "INPUT.TO_BGR255", False,
    "INPUT.PIXEL_MEAN", [0.5] * 3, "INPUT.PIXEL_STD", [0.25] * 3,
]  # fmt: skip


@pytest.fixture
def exportable(tiny_config):
    """Return a function that returns an exportable config and its model, with overrides."""

    def build(*opts):
        torch.manual_seed(0)
        cfg = tiny_config(*EXPORTABLE, *opts)
        return cfg, build_model(cfg).eval()

    return build


@pytest.mark.parametrize(
    "opts",
    [
        (),
        ("MODEL.RPN.ANCHOR_SIZES", [[12, 20], [24, 40], [48, 80], [96, 160], [192, 320]]),
        ("MODEL.CONVENTION_OVERRIDE", ["frozen_norm_eps=0.001"], "MODEL.MASK_ON", False),
        ("MODEL.RESNETS.NORM", "BN", "MODEL.RESNETS.BN_EPSILON", 1e-3),
        ("MODEL.RPN.NUM_CONVS", 2, "MODEL.ROI_HEADS.BBOX_REG_WEIGHTS", (8.0, 8.0, 4.0, 4.0)),
    ],
    ids=["plain", "anchors", "epsilon", "trained norm", "two convolutions"],
)
def test_torchvision_loads_the_state(exportable, opts):
    cfg, model = exportable(*opts)
    state, settings = export_to_torchvision(cfg, model)
    build_torchvision_model(cfg, model.state_dict()).load_state_dict(state)
    assert f"min_size {cfg.INPUT.MIN_SIZE_TEST}" in settings
    eps = 0.001 if any("EPSILON" in str(o) or o == ["frozen_norm_eps=0.001"] for o in opts) else 0.0
    assert f"BatchNorm2d {eps}" in settings


def test_similar_scores_do_not_count_as_different(exportable):
    """The scores of a model without training differ by less than float32 rounds."""
    cfg, model = exportable("MODEL.MASK_ON", False)
    model.rpn.head.cls_logits.weight.data.mul_(1e-6)
    model.roi_heads.box.predictor.cls_score.weight.data.mul_(1e-5)
    export_to_torchvision(cfg, model)


def test_boxes_clipped_to_the_border_do_not_count_as_different(exportable):
    """The IoU of two equal boxes without area is undefined."""
    opts = [x for pair in FAMILY["retinanet-torchvision"].items() for x in pair]
    cfg, model = exportable(*opts, "MODEL.RETINANET.BBOX_REG_WEIGHTS", [1.0] * 4)
    model.head.bbox_pred.bias.data[::4] = 2.0  # twice the width of the anchor to the right
    export_to_torchvision(cfg, model)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("MODEL.ROI_BOX_HEAD.POOLER_TYPE", "ROIAlignV2"),
        ("MODEL.ROI_MASK_HEAD.POOLER_TYPE", "ROIPool"),
        ("MODEL.CONVENTION", "detectron2"),
        ("INPUT.TO_BGR255", True),
        ("MODEL.RPN.MIN_SIZE", 0.0),
        ("MODEL.ROI_BOX_HEAD.PASSES", 2),
        ("TEST.NMS.METHOD", "soft-linear"),
        ("TEST.NMS.CLASS_AGNOSTIC", True),
        ("TEST.TILE", 256),
        ("TEST.BBOX_AUG.ENABLED", True),
    ],
)
def test_keys_unsupported_by_torchvision_are_named(exportable, key, value):
    cfg, model = exportable(key, value)
    with pytest.raises(
        ValueError, match=rf"torchvision would detect other .*{key} {value} \(needed"
    ):
        export_to_torchvision(cfg, model)


@pytest.mark.parametrize(
    ("opts", "message"),
    [
        (("MODEL.RESNETS.NORM", "GN"), "GN"),
        (("MODEL.RESNETS.STEM_OUT_CHANNELS", 32), r"has backbone\.body\.res2\.0\.downsample"),
        (("MODEL.ROI_MASK_HEAD.NUM_HEADS", 2), r"roi_heads\.mask\.more"),
        (("MODEL.BACKBONE.CONV_BODY", "ViT-T-SFP"), "ViT-T-SFP"),
        (("MODEL.RPN.RPN_HEAD", "SeparableRPNHead"), r"has rpn\.head\.conv"),
        (
            ("MODEL.ROI_MASK_HEAD.FEATURE_EXTRACTOR", "SeparableConvFeatureExtractor"),
            r"has roi_heads\.mask\.feature_extractor\.convs\.0",
        ),
        (
            (
                "MODEL.BACKBONE.CONV_BODY", "R-50-FPN", "MODEL.RESNETS.RES2_OUT_CHANNELS", 256,
                "MODEL.RESNETS.STAGE_WITH_DCN", (False, False, False, True),
            ),
            r"has backbone\.body\.res5\.0\.conv2",
        ),
    ],
)  # fmt: skip
def test_other_models_are_refused(exportable, opts, message):
    cfg, model = exportable(*opts)
    with pytest.raises(ValueError, match=rf"torchvision has .*{message}"):
        export_to_torchvision(cfg, model)


def test_difference_without_a_known_key_is_refused(exportable, monkeypatch):
    cfg, model = exportable("MODEL.ROI_BOX_HEAD.POOLER_TYPE", "ROIAlignV2")
    monkeypatch.delitem(torchvision._REQUIRED, "MODEL.ROI_BOX_HEAD.POOLER_TYPE")
    with pytest.raises(ValueError, match=r"finds only \d+% of \d+ detections"):
        export_to_torchvision(cfg, model)
