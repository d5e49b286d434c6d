"""Every model with static shapes: same results, compiled, exported, and without reading values."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from yacs.config import CfgNode

from detlite.modeling.build import build_model
from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.optimize_for_training import use_static_shapes
from detlite.modeling.preprocessing import prepare_targets
from detlite.structures.instances import Detections, GroundTruth, Images, Proposals
from detlite.structures.masks.packed import PackedMasks
from tests.modeling.family import (
    assert_same_detections,
    family_batch,
    family_config,
    losses_and_gradients,
)

Case = tuple[DetectionModel, Images, GroundTruth, Proposals | None]


def reset_moving_average(model: DetectionModel) -> None:
    if "moving_foreground" in dict(model.named_buffers()):
        model.moving_foreground.fill_(model.START)


def test_heads_train_on_little_more_than_the_foreground(tiny_config):
    model = build_model(family_config("keypoint", tiny_config)).train()
    use_static_shapes(model)
    seen: dict[str, int] = {}
    for name, head in model.roi_heads.heads.items():
        head.register_forward_hook(lambda _, inputs, __, name=name: seen.update({name: inputs[1]}))
    model.losses(*family_batch(model))
    for rois in seen.values():
        foreground = int((rois[:, 0] >= 0).sum())
        assert 0 < foreground <= len(rois) <= foreground + 8 < 200
    assert len(seen) == 2


def pad_further(truth: GroundTruth, count: int) -> GroundTruth:
    masks = truth.masks
    if masks is not None:
        images, length = truth.labels.shape
        places = torch.arange(images * length).view(images, length)
        masks = PackedMasks.collate([masks.select(place) for place in places], length + count)
    boxes = F.pad(truth.boxes, (0, 0, 0, count), value=7.0)
    return replace(truth, boxes=boxes, labels=F.pad(truth.labels, (0, count)), masks=masks)


@pytest.mark.parametrize(
    "name",
    ["mask", pytest.param("c4", marks=pytest.mark.slow), "cascade", "retinanet", "proposals"],
)
@pytest.mark.parametrize("counts", [(0, 2), (0, 0)])
def test_padding_of_ground_truth_has_no_effect(tiny_config, make_batch, name, counts):
    images, targets = make_batch(*counts)
    model = build_model(family_config(name, tiny_config))
    batch, _ = model.prepare(images)
    truth = prepare_targets(targets, images, model.num_classes, model.required_targets)
    expected = losses_and_gradients(model, batch, truth)
    for static in (False, True):
        model.static_shapes = static
        padded = losses_and_gradients(model, batch, pad_further(truth, 3))
        torch.testing.assert_close(padded[0], expected[0], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(padded[1], expected[1], rtol=1e-3, atol=1e-5)


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
def test_padding_is_not_part_of_batch_statistics(tiny_config, name, opts):
    model = build_model(family_config(name, tiny_config, *opts))
    static = deepcopy(model)
    static.static_shapes = True
    batch = family_batch(model)
    losses = model.losses(*batch)
    torch.testing.assert_close(static.losses(*batch), losses, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(static.state_dict(), model.state_dict(), rtol=1e-5, atol=1e-6)


# ---- compilation and export


# Compiling takes seconds, so only models whose code differs.
_COMPILED = ("proposals", "keypoint", "cascade", "fast", "soft", "retinanet-torchvision")


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.slow) for name in _COMPILED])
def static_case(
    request: pytest.FixtureRequest, tiny_config: Callable[..., CfgNode]
) -> Iterator[Case]:
    model = build_model(family_config(request.param, tiny_config))
    model.static_shapes = True
    yield model, *family_batch(model)
    torch._dynamo.reset()


def test_detections_compile_without_graph_breaks(static_case):
    model, images, _, proposals = static_case
    model.eval()
    compiled = torch.compile(model.predict, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert_same_detections(model.predict(images, proposals), compiled(images, proposals))


# tests/modeling/test_compilation.py compiles the losses of the other models.
@pytest.mark.parametrize(
    "static_case", [pytest.param("keypoint", marks=pytest.mark.slow)], indirect=True
)
def test_losses_compile_without_graph_breaks(static_case):
    model, *batch = static_case
    torch.manual_seed(1)
    eager = model.losses(*batch)
    reset_moving_average(model)
    torch.manual_seed(1)
    losses = torch.compile(model.losses, fullgraph=True, backend="aot_eager")(*batch)
    torch.testing.assert_close(losses, eager, rtol=1e-5, atol=1e-6)
    torch.stack(list(losses.values())).sum().backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


class Inference(nn.Module):
    """`predict` as a module, for torch.export."""

    def __init__(self, model: DetectionModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Images, proposals: Proposals | None) -> Detections:
        return self.model.predict(images, proposals)


def test_inference_exports(static_case):
    model, images, _, proposals = static_case
    model.eval()
    with torch.no_grad():
        program = torch.export.export(Inference(model), (images, proposals))
        expected = model.predict(images, proposals)
        assert_same_detections(expected, program.module()(images, proposals))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mask", "retinanet"])
def test_exported_models_accept_other_batches_and_sizes(name, tiny_config):
    model = build_model(family_config(name, tiny_config)).eval()
    model.static_shapes = True
    images, _, _ = family_batch(model)
    auto = torch.export.Dim.AUTO
    shapes = ([{0: auto, 2: auto, 3: auto}, {0: auto}], None)
    with torch.no_grad():
        program = torch.export.export(Inference(model), (images, None), dynamic_shapes=shapes)
        others, _ = model.prepare([torch.rand(3, 96, 128), torch.rand(3, 90, 70)] * 2)
        assert_same_detections(model.predict(others), program.module()(others, None))
