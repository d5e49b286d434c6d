"""A Mask R-CNN that torchvision has too, as small as it can be there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SMALL: tuple[Any, ...] = (
    *("MODEL.BACKBONE.CONV_BODY", "R-18-FPN"),
    *("MODEL.RESNETS.BACKBONE_OUT_CHANNELS", 16),
    *("MODEL.RPN.PRE_NMS_TOP_N_TRAIN", 50),
    *("MODEL.RPN.PRE_NMS_TOP_N_TEST", 50),
    *("MODEL.RPN.FPN_POST_NMS_TOP_N_TRAIN", 50),
    *("MODEL.RPN.FPN_POST_NMS_TOP_N_TEST", 50),
    *("MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", 16),
    *("MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM", 16),
    *("MODEL.ROI_BOX_HEAD.NUM_CLASSES", 5),
    *("MODEL.ROI_MASK_HEAD.CONV_LAYERS", (16,)),
)


@pytest.fixture(scope="session")
def config(repo_root: Path) -> Path:
    """The config that is benchmarked by default."""
    return repo_root / "configs/coco/mask_rcnn_R_50_FPN_1x.yaml"


@pytest.fixture(scope="session")
def small() -> tuple[Any, ...]:
    """Overrides that make it small."""
    return SMALL


@pytest.fixture
def no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's peak is 10^9 a second, and nothing runs in a process of its own."""
    for module in ("model", "train"):
        monkeypatch.setattr(f"benchmarks.{module}.matmul_peak", lambda *args: 1e9)
        monkeypatch.setattr(f"benchmarks.{module}.peak_memory", lambda *args, device: 7.0)
