"""Whole models on a device without kernels, compared with the CPU.

test_other_device.py runs these tests in a separate process.
"""

import copy

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from detlite import ops
from detlite.apps.doctor import machine
from detlite.apps.doctor.operator_checks import operator_errors
from detlite.inference.optimize import optimize
from detlite.modeling.build import build_model, torch_device
from tests.modeling.family import (
    family_batch,
    family_config,
    losses_and_gradients,
    train_and_resume,
)
from tests.modeling.other_device import DEVICE, NAME, OtherDevice

KINDS = ["c4", "keypoint", "cascade", "retinanet"]


@pytest.fixture
def other():
    with OtherDevice() as device:
        yield device


@pytest.fixture
def config(request, tiny_config):
    return family_config(request.param, tiny_config)


def on_cpu(tree):
    return pytree.tree_map_only(Tensor, Tensor.cpu, tree)


def test_the_device_is_there(other):
    assert torch_device(NAME).type == NAME
    assert not ops.has_kernels(NAME)
    with pytest.raises(TypeError, match="no float64"):
        torch.zeros(3, dtype=torch.float64, device=DEVICE)
    with pytest.raises(AssertionError, match="two devices"):
        torch.ones(3, device=DEVICE) + torch.ones(3)


@pytest.mark.parametrize("config", KINDS, indirect=True)
def test_results_are_those_of_the_cpu(config, other):
    model = build_model(config).train()
    there = copy.deepcopy(model).to(DEVICE)
    batch = family_batch(model)
    model.static_shapes = there.static_shapes = True
    expected, gradients = losses_and_gradients(model, *batch)
    moved = [x if x is None else x.to(DEVICE) for x in batch]
    actual, own = on_cpu(losses_and_gradients(there, *moved))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(own, gradients, rtol=1e-3, atol=1e-5)
    assert {name.split(".")[1] for name in other.called} & {"match_boxes"}
    with torch.no_grad():
        expected = model.eval().predict(batch[0])
        detections = there.eval().predict(moved[0])
    assert detections.boxes.device.type == NAME
    assert expected.valid.any()
    leaves = (pytree.tree_leaves(tree) for tree in (on_cpu(detections), expected))
    torch.testing.assert_close(*leaves, rtol=1e-4, atol=1e-3)


def test_masks_stay_on_the_cpu(tiny_config, other):
    _, truth, _ = family_batch(build_model(family_config("mask", tiny_config)))
    index, boxes = torch.tensor([0, -1, 2]), torch.tensor([[5.0, 5, 25, 30]]).repeat(3, 1)
    expected = ops.crop_masks(*truth.masks.tensors(), index, boxes, 14, False)
    there = truth.to(DEVICE).masks
    assert there.values.device.type == "cpu"
    actual = ops.crop_masks(*there.tensors(), index.to(DEVICE), boxes.to(DEVICE), 14, False)
    assert actual.device.type == NAME
    assert expected.any()
    assert torch.equal(actual.cpu(), expected)


def test_the_doctors_checks_pass(other):
    """Run the checks that `detlite doctor` makes on an Apple or Intel GPU."""
    assert machine.devices() == ["cpu", NAME]
    assert set(operator_errors(NAME).values()) == {""}


@torch.no_grad()
def test_an_optimized_model_detects_the_same(tiny_config, other):
    cfg = tiny_config("MODEL.RESNETS.NORM", "FrozenBN")
    model = build_model(cfg).eval()
    images, _, _ = family_batch(model)
    expected = model.predict(images)
    actual = optimize(copy.deepcopy(model).to(DEVICE), "float32").predict(images.to(DEVICE))
    torch.testing.assert_close(on_cpu(actual.boxes), expected.boxes, rtol=1e-4, atol=1e-2)


def test_a_run_trains_saves_evaluates_and_resumes(make_coco_dataset, tmp_path, other):
    """Also the loss on the test set, and the device's own generator in checkpoints."""
    data = make_coco_dataset(images=4, size=(64, 96))
    settings = {
        "MODEL.DEVICE": NAME,
        "MODEL.RESNETS.STEM_OUT_CHANNELS": 8,
        "MODEL.RESNETS.RES2_OUT_CHANNELS": 8,
        "MODEL.RESNETS.BACKBONE_OUT_CHANNELS": 16,
        "MODEL.GROUP_NORM.NUM_GROUPS": 4,
        "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE": 16,
        "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM": 16,
        "MODEL.ROI_MASK_HEAD.CONV_LAYERS": (16,),
        "MODEL.RPN.PRE_NMS_TOP_N_TEST": 100,
        "MODEL.RPN.FPN_POST_NMS_TOP_N_TEST": 30,
    }
    train_and_resume(data, tmp_path / "run", settings)
    saved = torch.load(tmp_path / "run" / "model_final.pth", weights_only=True)
    (generators,) = saved["training"]["rng"]
    assert generators[NAME].shape == (16,)
