"""Whole models on a GPU, compared with the CPU."""

import copy

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import detlite
from detlite.apps.doctor.operator_checks import operator_errors
from detlite.inference.optimize import optimize
from detlite.modeling.build import build_model
from tests.modeling.family import (
    FAMILY,
    family_batch,
    family_config,
    losses_and_gradients,
    train_and_resume,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(autouse=True)
def float32_without_tf32(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def to(device, tree):
    return pytree.tree_map_only(Tensor, lambda x: x.to(device), tree)


def records_on(device, records):
    return [record if record is None else record.to(device) for record in records]


@pytest.mark.parametrize("family", FAMILY)
@pytest.mark.parametrize("static_shapes", [False, True])
def test_results_are_those_of_the_cpu(family, static_shapes, tiny_config):
    model = build_model(family_config(family, tiny_config)).train()
    on_cuda = copy.deepcopy(model).cuda()
    records = family_batch(model)
    there = records_on("cuda", records)
    model.static_shapes = on_cuda.static_shapes = static_shapes
    losses, gradients = to("cpu", losses_and_gradients(model, *records))
    losses_cuda, gradients_cuda = to("cpu", losses_and_gradients(on_cuda, *there))
    torch.testing.assert_close(losses_cuda, losses, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradients_cuda, gradients, rtol=1e-3, atol=1e-4)
    with torch.no_grad():
        expected = model.eval().predict(records[0], records[2])
        actual = to("cpu", on_cuda.eval().predict(there[0], there[2]))
    assert expected.valid.any()
    for one, other in zip(actual.per_image(), expected.per_image(), strict=True):
        # Detections with equal scores up to rounding have no order, and the last one of an image
        # can be another one with such a score.
        assert len(one.boxes) == len(other.boxes)
        torch.testing.assert_close(one.scores, other.scores, rtol=1e-4, atol=1e-4)
        distance = (one.boxes[:, None] - other.boxes).abs().amax(dim=2)
        same = (distance < 1e-2) & (one.labels[:, None] == other.labels)
        last = other.scores[-1:] + 1e-4
        assert (same.any(dim=1) | (one.scores <= last)).all()
        assert (same.any(dim=0) | (other.scores <= last)).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", ["mask", "c4", "keypoint", "cascade", "retinanet"])
def test_half_precision_losses_are_close(family, dtype, tiny_config):
    model = build_model(family_config(family, tiny_config)).train().cuda()
    records = records_on("cuda", family_batch(model))
    losses, _ = to("cpu", losses_and_gradients(model, *records))
    model.zero_grad()
    with torch.autocast("cuda", getattr(torch, dtype)):
        half, gradients = to("cpu", losses_and_gradients(model, *records))
    torch.testing.assert_close(half, losses, rtol=0.1, atol=0.05)
    assert all(gradient.isfinite().all() for gradient in gradients.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@torch.no_grad()
def test_optimized_model_detects(dtype, tiny_config):
    model = build_model(family_config("mask", tiny_config)).eval().cuda()
    images, _, _ = family_batch(model)
    images = images.to("cuda")
    expected = model.predict(images)
    actual = optimize(copy.deepcopy(model), dtype).predict(images)
    assert actual.valid.any()
    if dtype == "float32":
        torch.testing.assert_close(actual.boxes, expected.boxes, rtol=1e-4, atol=1e-2)


def test_the_checks_of_doctor_pass():
    assert set(operator_errors("cuda").values()) == {""}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_run_trains_saves_evaluates_and_resumes(dtype, make_coco_dataset, tmp_path):
    data = make_coco_dataset(images=4, size=(64, 96))
    train_and_resume(data, tmp_path / "run", {"MODEL.DEVICE": "cuda", "DTYPE": dtype})
    predictor = detlite.Predictor(tmp_path / "run" / "model_final.pth")
    assert next(predictor.model.parameters()).device.type == "cuda"
    predictor((torch.rand(64, 96, 3) * 255).byte().numpy())
