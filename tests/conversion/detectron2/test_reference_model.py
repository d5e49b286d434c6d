"""Converted models detect the same as an independent implementation of detectron2."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import detlite
from tests.conversion.detection_differences import as_dict, compare
from tests.conversion.detectron2.reference_model import GROUPS, Reference
from tests.conversion.detectron2.synthetic_regnets import long_jittered, regnet
from tests.conversion.synthetic_state_dicts import (
    StateDict,
    cascade_of_convolutions,
    deformable,
    detectron2,
    dilated,
    long_rpn,
    retinanet,
)

_SCORE = 0.02
DIVIDED = (57.375, 57.12, 58.395)
# The state dict, and the settings of its config.
MODELS: dict[str, tuple[Callable[[], StateDict], dict[str, Any]]] = {
    "mask_rcnn_R_50_FPN": (detectron2, {}),
    "mask_rcnn_R_50_C4": (lambda: detectron2(fpn=False), {"backbone": "C4", "pre_nms": 6000}),
    "mask_rcnn_R_50_DC5": (dilated, {"backbone": "DC5", "pre_nms": 6000}),
    "mask_rcnn_X_101_FPN": (
        lambda: detectron2(101, groups=2),
        {"stride_in_1x1": False, "pixel_std": DIVIDED},
    ),
    "mask_rcnn_R_50_FPN_dconv": (lambda: deformable(detectron2(), "detectron2"), {}),
    "cascade of 4conv1fc heads": (cascade_of_convolutions, {}),
    "two convolutions in the RPN": (long_rpn, {}),
    "mask_rcnn_R_50_FPN_100ep_LSJ": (long_jittered, {}),
    "mask_rcnn_regnetx_4gf_dds_fpn_1x": (lambda: regnet(False, False), {"pixel_std": DIVIDED}),
    "mask_rcnn_regnety_4gf_dds_FPN_100ep_LSJ": (lambda: regnet(True, True), {"pixel_std": DIVIDED}),
    "retinanet_R_50_FPN": (lambda: retinanet("detectron2"), {}),
    "retinanet with group norm": (lambda: retinanet("detectron2", "GN"), {}),
    "retinanet with batch norm": (lambda: retinanet("detectron2", "BN"), {}),
}


@pytest.fixture
def exact():
    """Use float64, in which rounding errors change no detection."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def _scale(name: str, value: Tensor) -> Tensor:
    """Scale weights to keep the variance of activations, and center their rows."""
    layer, leaf = name.rsplit(".", 2)[-2:]
    if value.ndim == 0:  # a batch counter
        return value
    if value.ndim == 1:
        if leaf == "running_var" or (leaf == "weight" and re.search(r"norm$|bn$|^\d$", layer)):
            return value * 0.2 + (0.3 if re.search(r"conv3\.norm|c_bn", name) else 0.9)
        return value * 0.1
    fan_in = len(value) if layer == "deconv" else value[0].numel()
    gain = 0.005 if "stem" in name else 0.2 if "pred" in layer or "offset" in layer else 1.0
    rows = value.flatten(1) - value.flatten(1).mean(dim=1, keepdim=True)
    return (rows * gain * (2 / fan_in) ** 0.5).view(value.shape)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("exact")
def test_detections_equal_the_reference(name, tmp_path):
    if "regnet" in name:
        pytest.importorskip("timm", reason="timm is not installed")
    make, settings = MODELS[name]
    state = {key: _scale(key, value) for key, value in make().items()}
    torch.save(state, tmp_path / "w.pth")
    low = ["MODEL.ROI_HEADS.SCORE_THRESH", _SCORE, "MODEL.RETINANET.INFERENCE_TH", _SCORE]
    plain = ["MODEL.DEVICE", "cpu", "TEST.OPTIMIZE", False]  # optimized models are float32
    narrow = ["MODEL.GROUP_NORM.NUM_GROUPS", GROUPS]
    model = detlite.load_checkpoint(tmp_path / "w.pth", [*plain, *low, *narrow]).model
    coarse = [torch.randint(0, 256, (1, 3, h, w)).double() for h, w in ((9, 12), (12, 7))]
    images = [F.interpolate(x, scale_factor=10.5, mode="bilinear")[0].byte() for x in coarse]
    expected = Reference(state, score_thresh=_SCORE, **settings)(images)
    for detections, reference in zip(model.double().detect(images), expected, strict=True):
        difference = compare(as_dict(detections), reference)
        difference.check(20, box=1e-3, score=1e-5, mask=1e-4)
