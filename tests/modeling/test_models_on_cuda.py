"""Whole models on a GPU, compared with the CPU.

test_other_device.py runs these tests in a separate process on a device without kernels.
"""

import copy
import os
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import detlite
from detlite import ops
from detlite.apps.doctor import machine
from detlite.apps.doctor.operator_checks import operator_errors
from detlite.inference.optimize import optimize
from detlite.modeling.build import build_model, torch_device
from tests.modeling.family import (
    FAMILY,
    family_batch,
    family_config,
    losses_and_gradients,
)

NAME = os.environ.get("DETLITE_TEST_DEVICE", "cuda")
IS_CUDA = NAME == "cuda"
KINDS = FAMILY if IS_CUDA else ["c4", "keypoint", "cascade", "retinanet"]
DTYPES = ["float32", "bfloat16", "float16"] if IS_CUDA else ["float32"]
if not IS_CUDA:
    from tests.modeling.other_device import OtherDevice

pytestmark = pytest.mark.skipif(
    IS_CUDA and not torch.cuda.is_available(), reason="needs a CUDA device"
)
only_cuda = pytest.mark.skipif(not IS_CUDA, reason="the device has no half types")
only_other = pytest.mark.skipif(IS_CUDA, reason="the device has kernels")


@pytest.fixture(autouse=True)
def device(monkeypatch):
    """Make the device available, and float32 exact; returns a simulated device."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    if IS_CUDA:
        yield None
    else:
        with OtherDevice() as simulated:
            yield simulated


def on_cpu(tree: Any) -> Any:
    return pytree.tree_map_only(Tensor, Tensor.cpu, tree)


def moved(records: Any) -> list[Any]:
    return [record if record is None else record.to(torch.device(NAME, 0)) for record in records]


@pytest.mark.parametrize("family", KINDS)
@pytest.mark.parametrize("static_shapes", [False, True] if IS_CUDA else [True])
def test_results_are_those_of_the_cpu(family, static_shapes, tiny_config, device):
    model = build_model(family_config(family, tiny_config)).train()
    there = copy.deepcopy(model).to(NAME)
    records = family_batch(model)
    others = moved(records)
    model.static_shapes = there.static_shapes = static_shapes
    losses, gradients = losses_and_gradients(model, *records)
    actual_losses, actual_gradients = on_cpu(losses_and_gradients(there, *others))
    torch.testing.assert_close(actual_losses, losses, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(actual_gradients, gradients, rtol=1e-3, atol=1e-4)
    with torch.no_grad():
        expected = model.eval().predict(records[0], records[2])
        detections = there.eval().predict(others[0], others[2])
    assert detections.boxes.device.type == NAME
    assert expected.valid.any()
    assert device is None or any("match_boxes" in name for name in device.called)
    for one, other in zip(on_cpu(detections).per_image(), expected.per_image(), strict=True):
        # Detections with equal scores up to rounding have no order, and the last one of an image
        # can be another one with such a score.
        assert len(one.boxes) == len(other.boxes)
        torch.testing.assert_close(one.scores, other.scores, rtol=1e-4, atol=1e-4)
        distance = (one.boxes[:, None] - other.boxes).abs().amax(dim=2)
        same = (distance < 1e-2) & (one.labels[:, None] == other.labels)
        last = other.scores[-1:] + 1e-4
        assert (same.any(dim=1) | (one.scores <= last)).all()
        assert (same.any(dim=0) | (other.scores <= last)).all()


@only_cuda
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", ["mask", "c4", "keypoint", "cascade", "retinanet"])
def test_half_precision_losses_are_close(family, dtype, tiny_config):
    model = build_model(family_config(family, tiny_config)).train().cuda()
    records = moved(family_batch(model))
    losses, _ = on_cpu(losses_and_gradients(model, *records))
    model.zero_grad()
    with torch.autocast("cuda", getattr(torch, dtype)):
        half, gradients = on_cpu(losses_and_gradients(model, *records))
    torch.testing.assert_close(half, losses, rtol=0.1, atol=0.05)
    assert all(gradient.isfinite().all() for gradient in gradients.values())


@pytest.mark.parametrize("dtype", DTYPES)
@torch.no_grad()
def test_optimized_model_detects(dtype, tiny_config):
    cfg = family_config("mask", tiny_config, "MODEL.RESNETS.NORM", "FrozenBN")
    model = build_model(cfg).eval().to(NAME)
    images = family_batch(model)[0].to(torch.device(NAME, 0))
    expected = model.predict(images)
    actual = optimize(copy.deepcopy(model), dtype).predict(images)
    assert actual.valid.any()
    if dtype == "float32":
        boxes = on_cpu([actual.boxes, expected.boxes])
        torch.testing.assert_close(*boxes, rtol=1e-4, atol=1e-2)


def test_the_checks_of_doctor_pass():
    assert set(operator_errors(NAME).values()) == {""}


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_run_trains_saves_evaluates_and_resumes(dtype, make_coco_dataset, tmp_path):
    """Also the loss on the test set, and the device's own generator in checkpoints."""
    data = make_coco_dataset(images=4, size=(64, 96))
    settings = {
        "MODEL.DEVICE": NAME, "DTYPE": dtype, "DATALOADER.NUM_WORKERS": 0,
        "MODEL.RESNETS.STEM_OUT_CHANNELS": 8, "MODEL.RESNETS.RES2_OUT_CHANNELS": 8,
        "MODEL.RESNETS.BACKBONE_OUT_CHANNELS": 16, "MODEL.GROUP_NORM.NUM_GROUPS": 4,
        "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE": 16, "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM": 16,
        "MODEL.ROI_MASK_HEAD.CONV_LAYERS": (16,), "MODEL.RPN.PRE_NMS_TOP_N_TEST": 100,
        "MODEL.RPN.FPN_POST_NMS_TOP_N_TEST": 30, "INPUT.MIN_SIZE_TRAIN": (64,),
        "INPUT.MIN_SIZE_TEST": 64, "SOLVER.IMS_PER_BATCH": 2, "SOLVER.LOG_PERIOD": 1,
        "TEST.IMS_PER_BATCH": 1, "TEST.LOSS": True,
    }  # fmt: skip
    run = {"data": data, "test_data": data, "output_dir": tmp_path / "run"}
    for iterations in (2, 3):
        overrides = {**settings, "SOLVER.MAX_ITER": iterations}
        assert detlite.train(**run, overrides=overrides, resume=iterations == 3).metrics
    file = tmp_path / "run" / "model_final.pth"
    (generators,) = torch.load(file, weights_only=True)["training"]["rng"]
    assert NAME in generators
    if IS_CUDA:
        predictor = detlite.Predictor(file)
        assert next(predictor.model.parameters()).device.type == "cuda"
        predictor((torch.rand(64, 96, 3) * 255).byte().numpy())


@only_other
def test_a_device_without_kernels():
    assert torch_device(NAME).type == NAME
    assert machine.devices() == ["cpu", NAME]
    assert not ops.has_kernels(NAME)
    with pytest.raises(TypeError, match="no float64"):
        torch.zeros(3, dtype=torch.float64, device=NAME)
    with pytest.raises(AssertionError, match="two devices"):
        torch.ones(3, device=NAME) + torch.ones(3)


@only_other
def test_masks_stay_on_the_cpu(tiny_config):
    _, truth, _ = family_batch(build_model(family_config("mask", tiny_config)))
    index, boxes = torch.tensor([0, -1, 2]), torch.tensor([[5.0, 5, 25, 30]]).repeat(3, 1)
    expected = ops.crop_masks(*truth.masks.tensors(), index, boxes, 14, False)
    there = truth.to(torch.device(NAME, 0)).masks
    assert there.values.device.type == "cpu"
    actual = ops.crop_masks(*there.tensors(), index.to(NAME), boxes.to(NAME), 14, False)
    assert actual.device.type == NAME
    assert expected.any()
    assert torch.equal(actual.cpu(), expected)
