"""What test_other_device.py runs in a process of its own: whole models on a device that detlite has
no kernels for, beside the CPU."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from family import FAMILY, family_batch, family_config
from other_device import DEVICE, NAME, OtherDevice
from torch import Tensor
from torch.utils import _pytree as pytree

from detlite import ops
from detlite.modeling.build import build_model, torch_device
from detlite.structures.rows import fixed_shapes

KINDS = ["mask", "c4", "keypoint", "cascade", "maskrcnn-benchmark", "torchvision", "retinanet"]


@pytest.fixture
def other():
    with OtherDevice() as device:
        yield device


@pytest.fixture(params=KINDS)
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


def test_losses_and_gradients_are_those_of_the_cpu(config, other):
    model = build_model(config).train()
    there = copy.deepcopy(model).to(DEVICE)
    images, truth, given = family_batch(model)

    def step(model, device):
        torch.manual_seed(0)
        records = (x if x is None else x.to(device) for x in (images, truth, given))
        losses = model.losses(*records)
        sum(losses.values()).backward()
        gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        return on_cpu((losses, gradients))

    with fixed_shapes():
        expected, gradients = step(model, "cpu")
    found, own = step(there, DEVICE)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(own, gradients, rtol=1e-3, atol=1e-5)
    assert {name.split(".")[1] for name in other.called} & {"match_boxes"}


@torch.no_grad()
def test_detections_are_those_of_the_cpu(config, other):
    model = build_model(config).eval()
    there = copy.deepcopy(model).to(DEVICE)
    images, _, given = family_batch(model)
    expected = model.predict(images, given)
    found = there.predict(*(x if x is None else x.to(DEVICE) for x in (images, given)))
    assert found.boxes.device.type == NAME
    assert expected.valid.any()
    torch.testing.assert_close(on_cpu(found), expected, rtol=1e-4, atol=1e-3)


def test_a_model_learns_and_detects_by_the_public_edge(tiny_config, other):
    """Lists of pictures and dicts, with masks; the loss falls."""
    model = build_model(tiny_config("MODEL.DEVICE", NAME, "INPUT.TO_BGR255", True)).train()
    image = torch.randint(0, 255, (3, 64, 96), dtype=torch.uint8)
    box = torch.tensor([[10.0, 10.0, 50.0, 40.0]])
    mask = torch.zeros(1, 64, 96, dtype=torch.uint8)
    mask[0, 10:40, 10:50] = 1
    target = {"boxes": box, "labels": torch.ones(1).long(), "masks": mask}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    totals = []
    for _ in range(6):
        losses = model([image], [target])
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()
        totals.append(sum(losses.values()).item())
    assert totals[-1] < totals[0]
    (found,) = model.eval()([image])
    assert found["boxes"].device.type == NAME
    assert found["masks"].shape[1:] == (1, 64, 96)


def test_families_are_covered():
    assert set(KINDS) <= FAMILY.keys()
