import pytest
import torch
from torch import nn

from detlite.config import ConfigError, load_config
from detlite.modeling.backbone import BACKBONES, Backbone
from detlite.modeling.build import build_model
from tests.modeling.family import LOSSES, check_losses


def test_unknown_backbone_is_reported_with_a_suggestion(tiny_config):
    cfg = tiny_config("MODEL.BACKBONE.CONV_BODY", "R-19-FPN")
    with pytest.raises(
        ConfigError, match=r"MODEL\.BACKBONE\.CONV_BODY: unknown backbone 'R-19-FPN'"
    ):
        build_model(cfg)


def test_every_named_module_registers_its_backbones():
    assert all(callable(BACKBONES.get(name)) for name in BACKBONES.names())


@pytest.mark.parametrize(("dilation", "stride"), [(1, 32), (2, 16)])
def test_c5_backbone(dilation, stride):
    cfg = load_config(
        None,
        ["MODEL.BACKBONE.CONV_BODY", "R-18-C5", "MODEL.RESNETS.RES5_DILATION", dilation,
         "MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR", "FPN2MLPFeatureExtractor",
         "MODEL.ROI_BOX_HEAD.PREDICTOR", "FPNPredictor", "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION", 7,
         "MODEL.DEVICE", "meta"],
    )  # fmt: skip
    with torch.device("meta"):
        model = build_model(cfg)
        (level,) = model.backbone(torch.zeros(1, 3, 64, 128))
    assert model.backbone.strides == (stride,)
    assert level.shape == (1, 512, 64 // stride, 128 // stride)


class _OneMap(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, stride=8, padding=1)

    def forward(self, x):
        return [self.conv(x)]


@pytest.fixture
def custom_backbone(monkeypatch):
    """Register a backbone with one map of stride 8."""

    def build(cfg):
        return Backbone(_OneMap(), nn.Identity(), 16, strides=(8,), pooled=1)

    monkeypatch.setitem(BACKBONES._builders, "one-map", build)
    return "one-map"


CUSTOM_HEADS = (
    "MODEL.DEVICE", "cpu", "MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR", "FPN2MLPFeatureExtractor",
    "MODEL.ROI_BOX_HEAD.PREDICTOR", "FPNPredictor", "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM", 8,
    "MODEL.ROI_BOX_HEAD.NUM_CLASSES", 4,
)  # fmt: skip


def test_custom_backbone_trains(custom_backbone, make_batch):
    cfg = load_config(None, ["MODEL.BACKBONE.CONV_BODY", custom_backbone, *CUSTOM_HEADS])
    model = build_model(cfg).train()
    assert model.rpn.anchor_generator.strides == (8,)
    check_losses(model, model(*make_batch(2, 1)), LOSSES - {"loss_mask"})


def test_anchors_of_a_custom_backbone(custom_backbone):
    sizes = ["MODEL.RPN.ANCHOR_SIZES", (32, 64)]
    cfg = load_config(None, ["MODEL.BACKBONE.CONV_BODY", custom_backbone, *CUSTOM_HEADS, *sizes])
    assert build_model(cfg).rpn.anchor_generator.per_cell == [6]  # a single map gets all sizes
