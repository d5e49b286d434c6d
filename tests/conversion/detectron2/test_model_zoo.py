"""Settings of detectron2's published models that their weights do not determine."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from detlite.checkpoint.files import read_checkpoint
from detlite.conversion.convert import convert
from detlite.conversion.detectron2.model_zoo import (
    anchor_config,
    config_by_name,
    stored_pixel_config,
)
from detlite.modeling.build import build_model
from detlite.modeling.preprocessing import Normalizer
from tests.conversion.recorded_state_dicts import config_of, state_dict

DIVIDED = [57.375, 57.12, 58.395]


@pytest.fixture
def state_of(tiny_config):
    """Return a function that makes the weights of a model with trained norms and options."""

    def state(*opts: Any) -> dict[str, Tensor]:
        weights = build_model(tiny_config(*opts)).state_dict()
        for name, value in weights.items():
            if name.endswith("num_batches_tracked"):
                value.add_(7)
        return {
            re.sub(r"^backbone\.body\.", "backbone.bottom_up.", name): value
            for name, value in weights.items()
        }

    return state


def _resnet(norm: str = "FrozenBN", freeze: int = 2, fpn: str = "", convs: int = 1) -> list[Any]:
    return [
        "MODEL.RESNETS.NORM", norm, "MODEL.BACKBONE.FREEZE_CONV_BODY_AT", freeze,
        "MODEL.FPN.NORM", fpn, "MODEL.RPN.NUM_CONVS", convs,
    ]  # fmt: skip


def _resnext(depth: int) -> list[Any]:
    return [
        "MODEL.BACKBONE.CONV_BODY", f"R-{depth}-FPN", "MODEL.RESNETS.NORM", "FrozenBN",
        "MODEL.RESNETS.NUM_GROUPS", 4, "MODEL.RESNETS.WIDTH_PER_GROUP", 2,
    ]  # fmt: skip


def _lvis(classes: int) -> list[Any]:
    return ["MODEL.ROI_BOX_HEAD.NUM_CLASSES", classes]


STRIDE, STD = "MODEL.RESNETS.STRIDE_IN_1X1", "INPUT.PIXEL_STD"
SCORE, COUNT = "MODEL.ROI_HEADS.SCORE_THRESH", "MODEL.ROI_HEADS.DETECTIONS_PER_IMG"


@pytest.mark.parametrize(
    ("opts", "expected"),
    [
        (_resnext(101), {STD: DIVIDED, STRIDE: False}),
        # Its pretrained weights include the division by the standard deviation.
        (_resnext(152), {STD: None, STRIDE: False}),
        (_resnet(), {STD: None, STRIDE: None}),
        (_resnet("BN", 2, "BN"), {STD: None, STRIDE: None}),  # mask_rcnn_R_50_FPN_3x_syncbn
        (_resnet("BN", 0, "BN"), {STD: DIVIDED, STRIDE: False}),  # scratch_..._FPN_9x_syncbn
        (_resnet("BN", 0, "BN", 2), {STD: None, STRIDE: None}),  # mask_rcnn_R_50_FPN_100ep_LSJ
        (_resnet("GN", 2, "GN"), {STD: None, STRIDE: False}),  # mask_rcnn_R_50_FPN_3x_gn
        (_lvis(1231), {SCORE: 1e-4, COUNT: 300}),
        (_lvis(1204), {SCORE: 1e-4, COUNT: 300}),
        (_lvis(81), {SCORE: None, COUNT: None}),
    ],
)
def test_settings_that_follow_from_the_weights(state_of, opts, expected):
    config = config_of(state_of(*opts), "detectron2")
    assert {key: config.get(key) for key in expected} == expected


@pytest.mark.parametrize(
    ("path", "key", "value"),
    [
        ("weights/model_final_da7b4c.pkl", STD, DIVIDED),
        ("Misc/scratch_mask_rcnn_R_50_FPN_9x_gn/183808979/x.pkl", STD, DIVIDED),
        ("Misc/scratch_mask_rcnn_R_50_FPN_3x_gn/138602908/x.pkl", STD, None),
        ("a/model_final_220cfb.pkl", STRIDE, False),
        ("Misc/mask_rcnn_R_50_FPN_3x_syncbn/169527823/x.pkl", STRIDE, None),
        ("a/model_final_af9cf5.pkl", "INPUT.MIN_SIZE_TEST", 1024),
        ("Cityscapes/mask_rcnn_R_50_FPN/142423278/x.pkl", "INPUT.MAX_SIZE_TEST", 2048),
        ("mask_rcnn_R_50_FPN_noaug_1x.pkl", "MODEL.ROI_MASK_HEAD.POOLER_TYPE", "ROIAlign"),
        ("model_final_cce136.pkl", "MODEL.ROI_KEYPOINT_HEAD.POOLER_SAMPLING_RATIO", 2),
        ("model_final_f10217.pkl", "MODEL.ROI_BOX_HEAD.POOLER_TYPE", None),
    ],
)
def test_settings_by_published_name(path, key, value):
    assert config_by_name(Path(path)).get(key) == value


@pytest.mark.parametrize(("code", "sampling"), [("62ca52", 2), ("f10217", 0)])
def test_checkpoint_with_a_published_name(code, sampling, saved):
    file = saved(state_dict("detectron2, FPN"), f"model_final_{code}.pth")
    config = yaml.safe_load(read_checkpoint(file).config)
    assert config["MODEL.ROI_BOX_HEAD.POOLER_SAMPLING_RATIO"] == sampling


@pytest.mark.parametrize(
    ("mean", "std"),
    [
        ([103.53, 116.28, 123.675], [1.0, 1.0, 1.0]),
        ([123.675, 116.28, 103.53], [58.395, 57.12, 57.375]),  # RGB
    ],
)
def test_stored_pixel_statistics(mean, std):
    statistics = {
        name: torch.tensor(values).view(3, 1, 1)
        for name, values in (("pixel_mean", mean), ("pixel_std", std))
    }
    config = config_of(state_dict("detectron2, FPN") | statistics, "detectron2")
    bgr = mean[0] < mean[2]
    normalizer = Normalizer(config["INPUT.PIXEL_MEAN"], config[STD], config["INPUT.TO_BGR255"], 1)
    image = torch.randint(0, 256, (3, 4, 5), dtype=torch.uint8)
    pixels = image.flip(0) if bgr else image
    expected = (pixels.float() - statistics["pixel_mean"]) / statistics["pixel_std"]
    torch.testing.assert_close(normalizer([image]).pixels[0], expected, atol=1e-5, rtol=0)
    assert stored_pixel_config({"pixel_mean": statistics["pixel_mean"]}) == {}


def _cells(levels: list[list[float]], ratios: list[float]) -> dict[str, Tensor]:
    """Make anchors in the format of older files."""
    cells = {}
    for level, sizes in enumerate(levels):
        sides = [(s / r**0.5 / 2, s * r**0.5 / 2) for s in sizes for r in ratios]
        rows = torch.tensor([[-x, -y, x, y] for x, y in sides])
        cells[f"proposal_generator.anchor_generator.cell_anchors.{level}"] = rows
    return cells


OCTAVES = [[s * 2 ** (k / 3) for k in range(3)] for s in (32, 64, 128, 256, 512)]
OWN, RATIOS = [[8.0, 10.0], [16.0, 20.0]], [0.25, 1.0, 2.5, 4.0]


@pytest.mark.parametrize(
    ("section", "levels", "ratios", "expected"),
    [
        ("RPN", [[32], [64], [128], [256], [512]], [0.5, 1.0, 2.0], {}),
        ("RPN", [[32, 64, 128, 256, 512]], [0.5, 1.0, 2.0], {}),
        ("RPN", [], [], {}),
        ("RETINANET", OCTAVES, [0.5, 1.0, 2.0], {}),
        ("RETINANET", OWN, RATIOS,
         {"ANCHOR_SIZES": OWN, "ASPECT_RATIOS": RATIOS, "SCALES_PER_OCTAVE": 1}),
    ],
)  # fmt: skip
def test_stored_anchors(section, levels, ratios, expected):
    config = anchor_config(_cells(levels, ratios), f"MODEL.{section}")
    assert config == {f"MODEL.{section}.{key}": value for key, value in expected.items()}


def test_anchors_of_a_checkpoint(state_of):
    levels, ratios = [[8.0], [16.0], [32.0], [64.0], [128.0]], [0.2, 0.5, 1.0, 2.0, 5.0]
    state = state_of("MODEL.RESNETS.NORM", "FrozenBN", "MODEL.RPN.ASPECT_RATIOS", ratios)
    checkpoint = convert(state | _cells(levels, ratios), "detectron2")
    config = yaml.safe_load(checkpoint.config)
    assert config["MODEL.RPN.ANCHOR_SIZES"] == levels
    assert config["MODEL.RPN.ASPECT_RATIOS"] == ratios
    bias = "rpn.head.cls_logits.bias"  # one size: the order stays
    assert torch.equal(checkpoint.model[bias], state[bias])
