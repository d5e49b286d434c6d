"""torchvision's detectors, live, with the same weights."""

from __future__ import annotations

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
SIZES = {"E": (96, 128), "F": (128, 96)}  # so that training needs no resize


@pytest.fixture(scope="module")
def recipe(data_root):
    return load_recipe(data_root / "golden")


@pytest.fixture(scope="module", params=TORCHVISION)
def models(request, recipe):
    """Both models; few boxes, as their heads take most of the time."""
    few, opts = {}, []
    if "rcnn" in request.param:
        few = {"box_batch_size_per_image": 8, "box_detections_per_img": 30}
        opts = ["MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", 8]
        opts += ["MODEL.ROI_HEADS.DETECTIONS_PER_IMG", 30]
    reference = torchvision_model(request.param, recipe, min_size=SHORT_SIDE, **few)
    return request.param, reference, predictor_of(reference, opts)


def test_detections_from_the_picture_on(models, recipe):
    _, reference, predictor = models
    reference.transform.min_size = (115,)  # no whole factor: the resize shows
    predictor.min_size = 115
    found = compare_torchvision(reference, predictor, recipe.load_picture("D")[0])
    reference.transform.min_size = (SHORT_SIDE,)
    assert found.count > 20
    assert found.unmatched == 0
    assert found.box < 0.02
    assert found.score < 3e-4
    assert found.mask < 1e-3
    assert found.keypoint < 0.02
    assert found.keypoint_score < 1e-3
    assert found.ties <= 1


def test_losses_and_gradients_of_a_step(models, recipe):
    name, reference, predictor = models
    if name.startswith("fasterrcnn"):
        pytest.skip("a part of the Mask R-CNN, which is compared")
    batch = training_batch(recipe, SIZES, classes=2 if "keypoint" in name else 91)
    exact = compare_step(reference, predictor, *batch, torch.float64)
    assert exact.parameters > 70
    assert exact.losses < 1e-6
    assert exact.gradients < 1e-6
    step = compare_step(reference, predictor, *batch, torch.float32)
    assert step.losses < 1e-5
    # Behind batch norm, a few ReLUs are open in one and shut in the other.
    assert step.gradients < (1e-2 if name.endswith("_v2") else 1e-3)


def test_weights_go_back_strictly(models):
    _, reference, predictor = models
    written = to_torchvision(predictor.model.state_dict())
    for name, value in reference.state_dict().items():
        assert torch.equal(written[name], value), name
    reference.load_state_dict(written)
