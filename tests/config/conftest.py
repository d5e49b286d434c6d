"""Fixtures for tests of whole configs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from yacs.config import CfgNode

from detlite.config import load_config
from detlite.modeling.build import build_model

_FEW: dict[str, Any] = {
    "MODEL.DEVICE": "cpu",
    "MODEL.GROUP_NORM.NUM_GROUPS": 4,
    "MODEL.RESNETS.STEM_OUT_CHANNELS": 8,
    "MODEL.RESNETS.RES2_OUT_CHANNELS": 16,
    "MODEL.RPN.PRE_NMS_TOP_N_TRAIN": 20,
    "MODEL.RPN.PRE_NMS_TOP_N_TEST": 20,
    "MODEL.RPN.BATCH_SIZE_PER_IMAGE": 32,
    "MODEL.RPN.POST_NMS_TOP_N_TEST": 10,
    "MODEL.RPN.FPN_POST_NMS_TOP_N_TEST": 10,
    "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE": 8,
    "MODEL.ROI_HEADS.SCORE_THRESH": 0.0,
    "MODEL.ROI_HEADS.DETECTIONS_PER_IMG": 5,
    "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM": 16,
    "MODEL.ROI_BOX_HEAD.CONV_HEAD_DIM": 16,
    "MODEL.ROI_MASK_HEAD.CONV_LAYERS": (16, 16),
    "MODEL.ROI_KEYPOINT_HEAD.CONV_LAYERS": (16, 16),
}


@pytest.fixture(scope="session")
def train_and_detect() -> Callable[[Path], None]:
    """Return a function that tries the model of a config with few channels and few proposals.

    It makes a training step and detects, in two images, one without objects.
    """

    def run(file: Path) -> None:
        cfg = load_config(file, _narrow(load_config(file)))
        model = build_model(cfg)
        images, targets = _batch(cfg)
        losses = model.train()(images, targets)
        sum(losses.values()).backward()
        assert all(loss.isfinite() for loss in losses.values())
        [actual, _] = model.eval()(images, targets)
        assert len(actual["boxes"]) == len(actual["scores"])
        assert ("masks" in actual) == cfg.MODEL.MASK_ON
        assert ("keypoints" in actual) == cfg.MODEL.KEYPOINT_ON

    return run


def _narrow(cfg: CfgNode) -> dict[str, Any]:
    few = dict(_FEW)
    body = cfg.MODEL.BACKBONE.CONV_BODY
    if not body.startswith(("R-18", "R-34")):
        # keeps the number of groups of a ResNeXt
        few["MODEL.RESNETS.WIDTH_PER_GROUP"] = 8 if cfg.MODEL.RESNETS.NUM_GROUPS == 1 else 1
    if "-FPN" in body:
        few["MODEL.RESNETS.BACKBONE_OUT_CHANNELS"] = 16
    return few


def _batch(cfg: CfgNode) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    images = [torch.rand(3, 64, 96), torch.rand(3, 96, 64)]
    boxes = torch.tensor([[8.0, 6, 60, 50], [50, 20, 90, 60]])
    masks = torch.zeros(2, 64, 96, dtype=torch.uint8)
    masks[0, 6:50, 8:60] = masks[1, 20:60, 50:90] = 1
    points = cfg.MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES
    places = boxes[:, None, :2] + torch.rand(2, points, 2) * 30
    target = {
        "boxes": boxes,
        "labels": torch.tensor([1, 1]),
        "masks": masks,
        "keypoints": torch.cat([places, torch.full((2, points, 1), 2.0)], dim=2),
        "proposals": boxes + torch.tensor([2.0, -1, 3, 2]),
    }
    empty = {name: value[:0] for name, value in target.items()}
    return images, [target, {**empty, "masks": masks[:0].new_zeros(0, 96, 64)}]
