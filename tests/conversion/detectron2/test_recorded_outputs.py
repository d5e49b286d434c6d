"""Converted models have the recorded outputs of an independent implementation of detectron2.

It was written from the papers and detectron2's conventions with torchvision's operators, in
float64, for models without outputs of detectron2 itself.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import detlite
from detlite.modeling.backbone import vit
from tests.conversion.detection_differences import as_dict, compare
from tests.conversion.recorded_state_dicts import make_images, state_dict

OUTPUTS = np.load(Path(__file__).with_name("outputs.npz"))
MODELS = list(dict.fromkeys(name.split("/")[0] for name in OUTPUTS))
SCORE = 0.02
SETTINGS = [
    "MODEL.DEVICE", "cpu", "TEST.OPTIMIZE", False,  # optimized models are float32
    "MODEL.ROI_HEADS.SCORE_THRESH", SCORE, "MODEL.RETINANET.INFERENCE_TH", SCORE,
    "MODEL.GROUP_NORM.NUM_GROUPS", 4,
]  # fmt: skip


@pytest.fixture
def exact(monkeypatch):
    """Use float64, in which rounding errors change no detection, and a narrow transformer."""
    monkeypatch.setitem(vit.SIZES, "T", (16, 4, 2))
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("exact")
def test_detections_equal_the_recorded_outputs(name, tmp_path):
    if "RegNet" in name:
        pytest.importorskip("timm", reason="timm is not installed")
    torch.save(state_dict(f"detectron2, {name}"), tmp_path / "w.pth")
    settings = [item for item in SETTINGS if item is not None]
    model = detlite.load_checkpoint(tmp_path / "w.pth", settings).model.double()
    for number, detections in enumerate(model.detect(list(make_images()))):
        found = as_dict(detections)
        if "mask_probs" in found:
            found["mask_probs"] = F.adaptive_avg_pool2d(found["mask_probs"], 4)
        prefix = f"{name}/{number}/"
        expected: dict[str, Any] = {
            key.removeprefix(prefix): torch.from_numpy(OUTPUTS[key])
            for key in OUTPUTS
            if key.startswith(prefix)
        }
        compare(found, expected).check(70, box=1e-3, score=1e-5, mask=1e-4)
