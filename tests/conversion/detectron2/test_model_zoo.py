"""How published models of detectron2 differ where their entries do not say it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor
from yacs.config import CfgNode

from detlite.conversion.checkpoint.files import read_checkpoint
from detlite.conversion.checkpoint_source import ConfigValues
from detlite.conversion.detectron2.model_zoo import anchor_config, config_by_name, pixel_config
from detlite.conversion.detectron2.source import DETECTRON2
from detlite.modeling.build import build_model
from detlite.modeling.preprocessing import Normalizer

DIVIDED = [57.375, 57.12, 58.395]


@pytest.fixture
def found(tiny_config: Callable[..., CfgNode]) -> Callable[..., ConfigValues]:
    """`found(*opts)`: the config of a file of detectron2 that holds such a model."""

    def config(*opts: Any) -> ConfigValues:
        state = build_model(tiny_config(*opts)).state_dict()
        for name in state:
            if name.endswith("num_batches_tracked"):  # as after training
                state[name].add_(7)
        return DETECTRON2.configure(state, {}, Path(), state)

    return config


def _resnext(depth: int) -> list[Any]:
    return [
        "MODEL.BACKBONE.CONV_BODY", f"R-{depth}-FPN", "MODEL.RESNETS.NORM", "FrozenBN",
        "MODEL.RESNETS.NUM_GROUPS", 4, "MODEL.RESNETS.WIDTH_PER_GROUP", 2,
    ]  # fmt: skip


def test_only_resnext_101_divides_pixels(found):
    config = found(*_resnext(101))
    assert config["INPUT.PIXEL_STD"] == DIVIDED
    assert config["MODEL.RESNETS.STRIDE_IN_1X1"] is False
    # that of 152 layers began with weights that had taken the division up
    config = found(*_resnext(152))
    assert "INPUT.PIXEL_STD" not in config
    assert config["MODEL.RESNETS.STRIDE_IN_1X1"] is False


@pytest.mark.parametrize(
    ("body", "freeze_at", "pyramid", "convs", "stride_in_1x1", "divided"),
    [
        ("FrozenBN", 2, "", 1, None, False),
        ("BN", 2, "BN", 1, None, False),  # mask_rcnn_R_50_FPN_3x_syncbn
        ("BN", 0, "BN", 1, False, True),  # scratch_mask_rcnn_R_50_FPN_9x_syncbn
        ("BN", 0, "BN", 2, None, False),  # mask_rcnn_R_50_FPN_100ep_LSJ
        ("GN", 2, "GN", 1, False, False),  # mask_rcnn_R_50_FPN_3x_gn
    ],
)
def test_norms_tell_models_apart(found, body, freeze_at, pyramid, convs, stride_in_1x1, divided):
    config = found(
        "MODEL.RESNETS.NORM", body, "MODEL.BACKBONE.FREEZE_CONV_BODY_AT", freeze_at,
        "MODEL.FPN.NORM", pyramid, "MODEL.RPN.NUM_CONVS", convs,
    )  # fmt: skip
    assert config["MODEL.RESNETS.NORM"] == body
    assert config.get("MODEL.RESNETS.STRIDE_IN_1X1") is stride_in_1x1
    assert ("INPUT.PIXEL_STD" in config) == divided


@pytest.mark.parametrize(
    ("classes", "thresh", "count"), [(1231, 1e-4, 300), (1204, 1e-4, 300), (81, None, None)]
)
def test_many_classes_score_low(found, classes, thresh, count):
    config = found("MODEL.ROI_BOX_HEAD.NUM_CLASSES", classes)
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
def test_names_of_published_files(path, key, value):
    assert config_by_name(Path(path)).get(key) == value


def test_a_file_by_its_published_name(tiny_config, tmp_path):
    model = build_model(tiny_config("MODEL.RESNETS.NORM", "FrozenBN"))
    state = {
        re.sub(r"^backbone\.body\.", "backbone.bottom_up.", name): value
        for name, value in model.state_dict().items()
    }
    for name, sampling in (("model_final_62ca52.pth", 2), ("model_final_f10217.pth", 0)):
        torch.save({"model": state}, tmp_path / name)
        config = yaml.safe_load(read_checkpoint(tmp_path / name).config)
        assert config["MODEL.ROI_BOX_HEAD.POOLER_SAMPLING_RATIO"] == sampling


def _kept(mean: list[float], std: list[float]) -> dict[str, Tensor]:
    return {
        name: torch.tensor(values).view(3, 1, 1)
        for name, values in (("pixel_mean", mean), ("pixel_std", std))
    }


def test_pixels_of_a_file():
    kept = _kept([103.53, 116.28, 123.675], [1.0, 1.0, 1.0])
    assert pixel_config(kept) == {
        "INPUT.PIXEL_MEAN": [103.53, 116.28, 123.675],
        "INPUT.PIXEL_STD": [1.0, 1.0, 1.0],
    }
    assert pixel_config({"pixel_mean": kept["pixel_mean"]}) == {}


def test_pixels_of_a_file_in_rgb():
    kept = _kept([123.675, 116.28, 103.53], [58.395, 57.12, 57.375])
    config = pixel_config({name: value.numpy() for name, value in kept.items()})
    normalizer = Normalizer(
        config["INPUT.PIXEL_MEAN"],
        config["INPUT.PIXEL_STD"],
        bgr255=config["INPUT.TO_BGR255"],
        divisibility=1,
    )
    image = torch.randint(0, 256, (3, 4, 5), dtype=torch.uint8)
    wanted = (image.float() - kept["pixel_mean"]) / kept["pixel_std"]
    torch.testing.assert_close(normalizer([image]).pixels[0], wanted, atol=1e-5, rtol=0)


def _cells(levels: list[list[float]], ratios: list[float]) -> dict[str, Tensor]:
    """Anchors as older files keep them."""
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
    ("part", "levels"),
    [
        ("MODEL.RPN", [[32], [64], [128], [256], [512]]),
        ("MODEL.RPN", [[32, 64, 128, 256, 512]]),
        (
            "MODEL.RETINANET",
            [[s * 2 ** (k / 3) for k in range(3)] for s in (32, 64, 128, 256, 512)],
        ),
    ],
)
def test_usual_anchors_say_nothing(part, levels):
    assert anchor_config(_cells(levels, [0.5, 1.0, 2.0]), part) == {}
    assert anchor_config({}, part) == {}


def test_anchors_of_a_file():
    levels = [[8.0, 10.0], [16.0, 20.0]]
    assert anchor_config(_cells(levels, [0.25, 1.0, 2.5, 4.0]), "MODEL.RETINANET") == {
        "MODEL.RETINANET.ANCHOR_SIZES": levels,
        "MODEL.RETINANET.ASPECT_RATIOS": [0.25, 1.0, 2.5, 4.0],
        "MODEL.RETINANET.SCALES_PER_OCTAVE": 1,
    }


def test_anchors_of_a_model(tiny_config, tmp_path):
    levels, ratios = [[8.0], [16.0], [32.0], [64.0], [128.0]], [0.2, 0.5, 1.0, 2.0, 5.0]
    asked = ["MODEL.RESNETS.NORM", "FrozenBN", "MODEL.RPN.ASPECT_RATIOS", ratios]
    model = build_model(tiny_config(*asked))
    state = {
        re.sub(r"^backbone\.body\.", "backbone.bottom_up.", name): value
        for name, value in model.state_dict().items()
    }
    torch.save(state | _cells(levels, ratios), tmp_path / "model_final.pth")
    checkpoint = read_checkpoint(tmp_path / "model_final.pth")
    config = yaml.safe_load(checkpoint.config)
    assert config["MODEL.RPN.ANCHOR_SIZES"] == levels
    assert config["MODEL.RPN.ASPECT_RATIOS"] == ratios
    bias = "rpn.head.cls_logits.bias"  # of one size: nothing to reorder
    assert torch.equal(checkpoint.model[bias], state[bias])
