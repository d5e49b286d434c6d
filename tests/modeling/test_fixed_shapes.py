"""Every detector with fixed shapes: the same digits, compiled and exported whole, and on a device
whose values are never read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from yacs.config import CfgNode

from detlite.modeling.build import META_ARCHITECTURES, build_model
from detlite.modeling.detection_model import DetectionModel
from detlite.structures import padding as rows
from detlite.structures.instances import Detections, GroundTruth, Images, Proposals
from detlite.structures.padding import fixed_shapes
from tests.modeling.family import FAMILY, family_batch, family_config

Case = tuple[DetectionModel, Images, GroundTruth, Proposals | None]


@pytest.fixture(params=FAMILY)
def config(request: pytest.FixtureRequest, tiny_config: Callable[..., CfgNode]) -> CfgNode:
    return family_config(request.param, tiny_config)


@pytest.fixture
def case(config: CfgNode) -> Case:
    model = build_model(config)
    return model, *family_batch(model)


# Compiling takes seconds: those whose code differs.
@pytest.fixture(
    params=[
        "mask",
        "c4",
        "keypoint",
        "cascade",
        "fast",
        "maskrcnn-benchmark",
        "voting",
        "retinanet-detectron2",
        "retinanet-torchvision",
        "proposals",
    ]
)
def compiled_case(
    request: pytest.FixtureRequest, tiny_config: Callable[..., CfgNode]
) -> Iterator[Case]:
    model = build_model(family_config(request.param, tiny_config))
    yield model, *family_batch(model)
    torch._dynamo.reset()


def assert_same_detections(left: Detections, right: Detections) -> None:
    for one, other in zip(left.per_image(), right.per_image(), strict=True):
        assert len(one.boxes) == len(other.boxes)
        assert torch.equal(one.labels, other.labels)
        for field in fields(one):
            values = getattr(one, field.name)
            if isinstance(values, Tensor):
                torch.testing.assert_close(values, getattr(other, field.name), rtol=1e-4, atol=1e-4)


def test_padding_changes_no_detection(case):
    model, images, _, given = case
    model.eval()
    with torch.no_grad():
        packed = model.predict(images, given)
        with fixed_shapes():
            padded = model.predict(images, given)
    assert packed.valid.any()
    assert_same_detections(packed, padded)


def test_padding_changes_neither_losses_nor_gradients(case):
    model, images, truth, given = case
    results = []
    for context in (torch.enable_grad, fixed_shapes):
        model.zero_grad()
        with context():
            losses = model.losses(images, truth, given)
            torch.stack(list(losses.values())).sum().backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        results.append((losses, gradients))
        if "moving_foreground" in dict(model.named_buffers()):
            model.moving_foreground.fill_(model.START)
    (packed, packed_grads), (padded, padded_grads) = results
    torch.testing.assert_close(packed, padded, rtol=1e-5, atol=1e-6)
    assert len(packed_grads) == len(padded_grads) > 0
    torch.testing.assert_close(packed_grads, padded_grads, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "opts"),
    [
        ("mask", ["MODEL.ROI_MASK_HEAD.NORM", "BN"]),
        ("mask", ["MODEL.ROI_BOX_HEAD.NORM", "BN"]),
        ("cascade", ["MODEL.ROI_BOX_HEAD.NORM", "BN"]),
        ("c4", ["MODEL.RESNETS.NORM", "BN", "MODEL.BACKBONE.FREEZE_CONV_BODY_AT", 0]),
    ],
    ids=["mask head", "box head", "cascade", "shared stage"],
)
def test_padding_is_in_no_batch_statistics(tiny_config, monkeypatch, name, opts):
    cfg = family_config(name, tiny_config)
    cfg.defrost()
    cfg.merge_from_list(opts)
    torch.manual_seed(0)
    model = build_model(cfg)
    twin = deepcopy(model)
    batch = family_batch(model)
    losses = model.losses(*batch)
    # As on a GPU, which leaves padding in unless it is told.
    monkeypatch.setattr(rows, "shapes_vary", lambda like, unpadded=False: unpadded)
    torch.testing.assert_close(twin.losses(*batch), losses, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(twin.state_dict(), model.state_dict(), rtol=1e-5, atol=1e-6)


def test_detections_compile_whole(compiled_case):
    model, images, _, given = compiled_case
    model.eval()
    compiled = torch.compile(model.predict, fullgraph=True, backend="aot_eager")
    with torch.no_grad(), fixed_shapes():
        assert_same_detections(model.predict(images, given), compiled(images, given))


def test_losses_compile_whole(compiled_case):
    model, images, truth, given = compiled_case
    compiled = torch.compile(model.losses, fullgraph=True, backend="aot_eager")
    with fixed_shapes():
        torch.manual_seed(1)
        plain = model.losses(images, truth, given)
    if "moving_foreground" in dict(model.named_buffers()):
        model.moving_foreground.fill_(model.START)
    torch.manual_seed(1)
    losses = compiled(images, truth, given)
    torch.testing.assert_close(losses, plain, rtol=1e-5, atol=1e-6)
    torch.stack(list(losses.values())).sum().backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


class Inference(nn.Module):
    def __init__(self, model: DetectionModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Images, given: Proposals | None) -> Detections:
        return self.model.predict(images, given)


def test_inference_exports_whole(compiled_case):
    model, images, _, given = compiled_case
    model.eval()
    with torch.no_grad():
        program = torch.export.export(Inference(model), (images, given))
        with fixed_shapes():
            expected = model.predict(images, given)
        assert_same_detections(expected, program.module()(images, given))


@pytest.mark.parametrize("name", ["mask", "retinanet"])
def test_export_takes_other_batches_and_sizes(name, tiny_config):
    model = build_model(family_config(name, tiny_config)).eval()
    images, _, _ = family_batch(model)
    auto = torch.export.Dim.AUTO
    shapes = ([{0: auto, 2: auto, 3: auto}, {0: auto}], None)
    with torch.no_grad():
        program = torch.export.export(Inference(model), (images, None), dynamic_shapes=shapes)
        others, _ = model.prepare([torch.rand(3, 96, 128), torch.rand(3, 90, 70)] * 2)
        with fixed_shapes():
            expected = model.predict(others)
        assert_same_detections(expected, program.module()(others, None))


def test_a_training_step_on_a_gpu_reads_nothing_back(config):
    """On fake CUDA tensors, which have no values: whatever would wait for one raises.

    The backward pass is on fake tensors of the CPU, since torch's engine asks for a real GPU.
    """
    real = build_model(config)
    records = family_batch(real)
    for device in ("cuda", "cpu"):
        # On a GPU shapes are fixed without being asked.
        shapes = fixed_shapes() if device == "cpu" else nullcontext()
        with FakeTensorMode() as mode, torch.device(device), shapes:
            build = META_ARCHITECTURES.get(config.MODEL.META_ARCHITECTURE, "")
            model = build(config).train()

            def fake(value: Any, mode: FakeTensorMode = mode, device: str = device) -> Any:
                is_tensor = isinstance(value, Tensor)
                return mode.from_tensor(value).to(device) if is_tensor else value

            images, truth, given = pytree.tree_map(fake, records)
            losses = model.losses(images, truth, given)
            assert {loss.device.type for loss in losses.values()} == {device}
            if device == "cpu":
                trainable = [p for p in model.parameters() if p.requires_grad]
                optimizer = torch.optim.SGD(trainable, lr=0.1, momentum=0.9)
                torch.stack(list(losses.values())).sum().backward()
                optimizer.step()
            with torch.no_grad():
                assert model.eval().predict(images, given).boxes.device.type == device


def test_fake_tensors_notice_a_value_that_is_read():
    with FakeTensorMode(), pytest.raises(Exception, match="local_scalar_dense"):
        torch.ones(3, device="cuda").sum().item()
