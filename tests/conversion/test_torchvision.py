"""Converted models equal torchvision's detectors with the same weights."""

import pytest
import torch

from detlite.conversion import to_torchvision
from tests.conversion.recorded_outputs import load_recipe
from tests.conversion.torchvision_models import (
    TORCHVISION,
    compare_step,
    compare_torchvision,
    predictor_of,
    torchvision_model,
    training_batch,
)

SHORT_SIDE = 96
SIZES = {"E": (96, 128), "F": (128, 96)}  # need no resize in training
FAST = ("maskrcnn_resnet50_fpn", "retinanet_resnet50_fpn_v2")


@pytest.fixture(scope="module")
def recipe(data_root):
    return load_recipe(data_root / "golden")


@pytest.fixture(
    scope="module",
    params=[
        *FAST,
        *(pytest.param(name, marks=pytest.mark.slow) for name in TORCHVISION if name not in FAST),
    ],
)
def models(request, recipe):
    """Both models, with few RoIs, whose heads take most of the time."""
    few, opts = {}, []
    if "rcnn" in request.param:
        few = {"box_batch_size_per_image": 8, "box_detections_per_img": 30}
        opts = ["MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", 8]
        opts += ["MODEL.ROI_HEADS.DETECTIONS_PER_IMG", 30]
    reference = torchvision_model(request.param, recipe, min_size=SHORT_SIDE, **few)
    return request.param, reference, predictor_of(reference, opts)


def test_detections_end_to_end(models, recipe):
    _, reference, predictor = models
    reference.transform.min_size = (115,)  # a fractional scale factor
    predictor.min_size = 115
    difference = compare_torchvision(reference, predictor, recipe.load_picture("D")[0])
    reference.transform.min_size = (SHORT_SIDE,)
    difference.check(
        21, box=0.02, score=3e-4, mask=1e-3, keypoint=0.02, keypoint_score=1e-3, ties=2
    )


def test_losses_and_gradients_of_a_step(models, recipe):
    name, reference, predictor = models
    if name.startswith("fasterrcnn"):
        pytest.skip("a part of Mask R-CNN")
    batch = training_batch(recipe, SIZES, classes=2 if "keypoint" in name else 91)
    exact = compare_step(reference, predictor, *batch, torch.float64)
    assert exact.parameters > 70
    assert exact.losses < 1e-6
    assert exact.gradients < 1e-6
    step = compare_step(reference, predictor, *batch, torch.float32)
    assert step.losses < 1e-5
    # Rounding errors change the sign of a few inputs of ReLUs after batch norm.
    assert step.gradients < (1e-2 if name.endswith("_v2") else 1e-3)


def test_weights_are_converted_back(models):
    _, reference, predictor = models
    state = to_torchvision(predictor.model.state_dict())
    for name, value in reference.state_dict().items():
        assert torch.equal(state[name], value), name
    reference.load_state_dict(state)
