"""Settings of detectron2's published models that their weights do not determine."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from detlite.checkpoint.files import read_checkpoint
from detlite.conversion.checkpoint_source import ConfigValues
from detlite.conversion.detectron2.model_zoo import (
    anchor_config,
    config_by_name,
    stored_pixel_config,
)
from detlite.conversion.detectron2.source import DETECTRON2
from detlite.modeling.build import build_model
from detlite.modeling.preprocessing import Normalizer

DIVIDED = [57.375, 57.12, 58.395]


@pytest.fixture
def infer(tiny_config):
    """Return a function that infers the config of a model with these options."""

    def config(*opts: Any) -> ConfigValues:
        state = build_model(tiny_config(*opts)).state_dict()
        for name in state:
            if name.endswith("num_batches_tracked"):  # trained norms
                state[name].add_(7)
        assumed, stated = DETECTRON2.configure(state, {}, Path(), state)
        return assumed | stated

    return config


def _resnext(depth: int) -> list[Any]:
    return [
        "MODEL.BACKBONE.CONV_BODY", f"R-{depth}-FPN", "MODEL.RESNETS.NORM", "FrozenBN",
        "MODEL.RESNETS.NUM_GROUPS", 4, "MODEL.RESNETS.WIDTH_PER_GROUP", 2,
    ]  # fmt: skip


def test_pixel_std_of_resnext(infer):
    config = infer(*_resnext(101))
    assert config["INPUT.PIXEL_STD"] == DIVIDED
    assert config["MODEL.RESNETS.STRIDE_IN_1X1"] is False
    # Its pretrained weights include the division by the standard deviation.
    config = infer(*_resnext(152))
    assert "INPUT.PIXEL_STD" not in config
    assert config["MODEL.RESNETS.STRIDE_IN_1X1"] is False


@pytest.mark.parametrize(
    ("backbone", "freeze_at", "pyramid", "convs", "stride", "divided"),
    [
        ("FrozenBN", 2, "", 1, None, False),
        ("BN", 2, "BN", 1, None, False),  # mask_rcnn_R_50_FPN_3x_syncbn
        ("BN", 0, "BN", 1, False, True),  # scratch_mask_rcnn_R_50_FPN_9x_syncbn
        ("BN", 0, "BN", 2, None, False),  # mask_rcnn_R_50_FPN_100ep_LSJ
        ("GN", 2, "GN", 1, False, False),  # mask_rcnn_R_50_FPN_3x_gn
    ],
)
def test_settings_that_depend_on_norms(infer, backbone, freeze_at, pyramid, convs, stride, divided):
    config = infer(
        "MODEL.RESNETS.NORM", backbone, "MODEL.BACKBONE.FREEZE_CONV_BODY_AT", freeze_at,
        "MODEL.FPN.NORM", pyramid, "MODEL.RPN.NUM_CONVS", convs,
    )  # fmt: skip
    assert config["MODEL.RESNETS.NORM"] == backbone
    assert config.get("MODEL.RESNETS.STRIDE_IN_1X1") is stride
    assert ("INPUT.PIXEL_STD" in config) == divided


@pytest.mark.parametrize(
    ("classes", "thresh", "count"), [(1231, 1e-4, 300), (1204, 1e-4, 300), (81, None, None)]
)
def test_lvis(infer, classes, thresh, count):
    config = infer("MODEL.ROI_BOX_HEAD.NUM_CLASSES", classes)
    assert config.get("MODEL.ROI_HEADS.SCORE_THRESH") == thresh
    assert config.get("MODEL.ROI_HEADS.DETECTIONS_PER_IMG") == count


@pytest.mark.parametrize(
    ("path", "key", "value"),
    [
        ("weights/model_final_da7b4c.pkl", "INPUT.PIXEL_STD", DIVIDED),
        ("Misc/scratch_mask_rcnn_R_50_FPN_9x_gn/183808979/x.pkl", "INPUT.PIXEL_STD", DIVIDED),
        ("Misc/scratch_mask_rcnn_R_50_FPN_3x_gn/138602908/x.pkl", "INPUT.PIXEL_STD", None),
        ("a/model_final_220cfb.pkl", "MODEL.RESNETS.STRIDE_IN_1X1", False),
        ("Misc/mask_rcnn_R_50_FPN_3x_syncbn/169527823/x.pkl", "MODEL.RESNETS.STRIDE_IN_1X1", None),
        ("a/model_final_af9cf5.pkl", "INPUT.MIN_SIZE_TEST", 1024),
        ("Cityscapes/mask_rcnn_R_50_FPN/142423278/x.pkl", "INPUT.MAX_SIZE_TEST", 2048),
        ("mask_rcnn_R_50_FPN_noaug_1x.pkl", "MODEL.ROI_MASK_HEAD.POOLER_TYPE", "ROIAlign"),
        ("model_final_cce136.pkl", "MODEL.ROI_KEYPOINT_HEAD.POOLER_SAMPLING_RATIO", 2),
        ("model_final_f10217.pkl", "MODEL.ROI_BOX_HEAD.POOLER_TYPE", None),
    ],
)
def test_settings_by_published_name(path, key, value):
    assert config_by_name(Path(path)).get(key) == value


def test_checkpoint_with_a_published_name(tiny_config, tmp_path):
    model = build_model(tiny_config("MODEL.RESNETS.NORM", "FrozenBN"))
    state = {
        re.sub(r"^backbone\.body\.", "backbone.bottom_up.", name): value
        for name, value in model.state_dict().items()
    }
    for name, sampling in (("model_final_62ca52.pth", 2), ("model_final_f10217.pth", 0)):
        torch.save({"model": state}, tmp_path / name)
        config = yaml.safe_load(read_checkpoint(tmp_path / name).config)
        assert config["MODEL.ROI_BOX_HEAD.POOLER_SAMPLING_RATIO"] == sampling


def _pixel_statistics(mean: list[float], std: list[float]) -> dict[str, Tensor]:
    return {
        name: torch.tensor(values).view(3, 1, 1)
        for name, values in (("pixel_mean", mean), ("pixel_std", std))
    }


def test_stored_pixel_statistics():
    statistics = _pixel_statistics([103.53, 116.28, 123.675], [1.0, 1.0, 1.0])
    assert stored_pixel_config(statistics) == {
        "INPUT.TO_BGR255": True,
        "INPUT.PIXEL_MEAN": [103.53, 116.28, 123.675],
        "INPUT.PIXEL_STD": [1.0, 1.0, 1.0],
    }
    assert stored_pixel_config({"pixel_mean": statistics["pixel_mean"]}) == {}


def test_stored_pixel_statistics_in_rgb():
    statistics = _pixel_statistics([123.675, 116.28, 103.53], [58.395, 57.12, 57.375])
    config = stored_pixel_config({name: value.numpy() for name, value in statistics.items()})
    normalizer = Normalizer(
        config["INPUT.PIXEL_MEAN"],
        config["INPUT.PIXEL_STD"],
        bgr255=config["INPUT.TO_BGR255"],
        divisibility=1,
    )
    image = torch.randint(0, 256, (3, 4, 5), dtype=torch.uint8)
    expected = (image.float() - statistics["pixel_mean"]) / statistics["pixel_std"]
    torch.testing.assert_close(normalizer([image]).pixels[0], expected, atol=1e-5, rtol=0)


def _cells(levels: list[list[float]], ratios: list[float]) -> dict[str, Tensor]:
    """Make anchors in the format of older files."""
    return {
        f"proposal_generator.anchor_generator.cell_anchors.{level}": torch.tensor(
            [
                [-size / ratio**0.5 / 2, -size * ratio**0.5 / 2,
                 size / ratio**0.5 / 2, size * ratio**0.5 / 2]
                for size in sizes
                for ratio in ratios
            ]
        )
        for level, sizes in enumerate(levels)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("section", "levels"),
    [
        ("MODEL.RPN", [[32], [64], [128], [256], [512]]),
        ("MODEL.RPN", [[32, 64, 128, 256, 512]]),
        (
            "MODEL.RETINANET",
            [[s * 2 ** (k / 3) for k in range(3)] for s in (32, 64, 128, 256, 512)],
        ),
    ],
)
def test_default_anchors(section, levels):
    assert anchor_config(_cells(levels, [0.5, 1.0, 2.0]), section) == {}
    assert anchor_config({}, section) == {}


def test_stored_anchors():
    levels = [[8.0, 10.0], [16.0, 20.0]]
    assert anchor_config(_cells(levels, [0.25, 1.0, 2.5, 4.0]), "MODEL.RETINANET") == {
        "MODEL.RETINANET.ANCHOR_SIZES": levels,
        "MODEL.RETINANET.ASPECT_RATIOS": [0.25, 1.0, 2.5, 4.0],
        "MODEL.RETINANET.SCALES_PER_OCTAVE": 1,
    }


def test_anchors_of_a_checkpoint(tiny_config, tmp_path):
    levels, ratios = [[8.0], [16.0], [32.0], [64.0], [128.0]], [0.2, 0.5, 1.0, 2.0, 5.0]
    opts = ["MODEL.RESNETS.NORM", "FrozenBN", "MODEL.RPN.ASPECT_RATIOS", ratios]
    model = build_model(tiny_config(*opts))
    state = {
        re.sub(r"^backbone\.body\.", "backbone.bottom_up.", name): value
        for name, value in model.state_dict().items()
    }
    torch.save(state | _cells(levels, ratios), tmp_path / "model_final.pth")
    checkpoint = read_checkpoint(tmp_path / "model_final.pth")
    config = yaml.safe_load(checkpoint.config)
    assert config["MODEL.RPN.ANCHOR_SIZES"] == levels
    assert config["MODEL.RPN.ASPECT_RATIOS"] == ratios
    bias = "rpn.head.cls_logits.bias"  # one size: the order stays
    assert torch.equal(checkpoint.model[bias], state[bias])
