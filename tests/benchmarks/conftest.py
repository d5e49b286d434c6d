"""Fixtures of the benchmarks: the smallest Mask R-CNN that torchvision can build."""

from pathlib import Path
from typing import Any

import pytest

SMALL: dict[str, Any] = {
    "MODEL.BACKBONE.CONV_BODY": "R-18-FPN", "MODEL.RESNETS.BACKBONE_OUT_CHANNELS": 16,
    "MODEL.RPN.PRE_NMS_TOP_N_TRAIN": 50, "MODEL.RPN.PRE_NMS_TOP_N_TEST": 50,
    "MODEL.RPN.FPN_POST_NMS_TOP_N_TRAIN": 50, "MODEL.RPN.FPN_POST_NMS_TOP_N_TEST": 50,
    "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE": 16, "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM": 16,
    "MODEL.ROI_BOX_HEAD.NUM_CLASSES": 5, "MODEL.ROI_MASK_HEAD.CONV_LAYERS": (16,),
}  # fmt: skip


@pytest.fixture(scope="session")
def config(repo_root: Path) -> Path:
    """The default config of the benchmarks."""
    return repo_root / "configs/coco/mask_rcnn_R_50_FPN_1x.yaml"


@pytest.fixture(scope="session")
def small() -> tuple[Any, ...]:
    """Overrides that make the model small."""
    return tuple(item for pair in SMALL.items() for item in pair)


@pytest.fixture
def fixed_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the measured peak rate by 10^9 operations per second, and memory by 7 MB."""
    for module in ("inference", "training"):
        monkeypatch.setattr(f"benchmarks.models.{module}.matmul_peak", lambda *args: 1e9)
        monkeypatch.setattr(f"benchmarks.models.{module}.peak_memory", lambda *args, device: 7.0)
