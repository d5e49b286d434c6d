"""Compiled losses, gradients and detections are the same as without the compiler."""

from collections import defaultdict
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.compilers import nop

from detlite.engine.train_step import TrainStep
from detlite.errors import ConfigError
from detlite.inference.optimize import PARTS, optimize
from detlite.modeling.build import build_model
from detlite.modeling.compilation import compile_losses, compile_parts, compiler_works
from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.optimize_for_training import optimize_for_training, use_static_shapes
from tests.builders import tiny_config
from tests.engine.toy import new_toy
from tests.modeling.family import (
    ALL_SCORES,
    CASCADE,
    assert_same_detections,
    family_batch,
    family_config,
)

Batch = tuple[list[torch.Tensor], list[dict[str, Any]]]


@pytest.fixture(autouse=True)
def empty_compiler(tmp_path, monkeypatch) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    yield
    torch._dynamo.reset()
    compiler_works.cache_clear()


def loss_and_gradients(model: DetectionModel, batch: Batch) -> Any:
    """Return the losses and gradients of lists of images and targets, with fixed samples."""
    model.train().zero_grad()
    torch.manual_seed(1)
    losses = model(*batch)
    torch.stack(list(losses.values())).sum().backward()
    return losses, {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def assert_same_steps(model: DetectionModel, batches: list[Batch]) -> None:
    """Compare compiled steps with eager ones. A bias has the scale of the weights of its layer.

    The bias of the keypoint logits needs that: the loss is a softmax over the cells of a map, so
    its gradient is a sum of terms that cancel, and zero but for rounding.
    """
    eager = deepcopy(model)
    use_static_shapes(eager)
    compile_losses(model, "aot_eager")
    for batch in batches:
        expected, gradients = loss_and_gradients(eager, batch)
        losses, own = loss_and_gradients(model, batch)
        torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-6)
        assert own.keys() == gradients.keys()
        scales: dict[str, float] = defaultdict(lambda: 1e-3)
        for name, gradient in gradients.items():
            layer = name.rpartition(".")[0]
            scales[layer] = max(scales[layer], float(gradient.abs().max()))
        for name, gradient in gradients.items():
            difference = float((own[name] - gradient).abs().max())
            assert difference <= 1e-5 * scales[name.rpartition(".")[0]], name
    torch.testing.assert_close(model.state_dict(), eager.state_dict(), rtol=1e-5, atol=1e-6)


# Compiling takes seconds for each layer.
_ONE_MAP = {
    "MODEL.BACKBONE.CONV_BODY": "R-50-C5",
    "MODEL.RESNETS.STAGE_WITH_DCN": (False, False, False, True),
    "MODEL.RESNETS.BACKBONE_OUT_CHANNELS": None,
}
_FROZEN = {"MODEL.RESNETS.NORM": "FrozenBN"}
_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "all heads": ("keypoint", {**CASCADE, **_FROZEN, **_ONE_MAP}),
    "c4": ("c4", _FROZEN),
    "fast": ("fast", _FROZEN),
    "retinanet": ("retinanet-torchvision", {**_FROZEN, "MODEL.RETINANET.NUM_CONVS": 1}),
}


def map_options(settings: dict[str, Any]) -> list[Any]:
    return [item for pair in settings.items() for item in pair]


def shallow_model(case: str) -> DetectionModel:
    """Build a model with one block per stage."""
    name, settings = _CASES[case]
    model = build_model(family_config(name, tiny_config, *map_options(settings), *ALL_SCORES))
    for stage in model.backbone.body.children():
        if isinstance(stage, nn.Sequential):
            del stage[1:]
    return model


@pytest.mark.slow  # up to half a minute each
@pytest.mark.parametrize("case", _CASES)
def test_compiled_steps_equal_eager_ones(make_batch, case):
    model = shallow_model(case)
    images, targets = make_batch(0, 4)
    higher = [target | {"masks": target["masks"].repeat(1, 2, 1)} for target in targets]
    batches = [make_batch(2, 1), ([image.repeat(1, 2, 1) for image in images], higher)]
    counters = torch._dynamo.utils.counters
    counters.clear()
    assert_same_steps(optimize_for_training(model), batches)
    assert not counters["graph_break"]


@pytest.mark.slow
def test_one_compilation_is_for_all_batches(make_batch):
    """Images of other sizes, other numbers of objects and ignored regions, none of them."""
    model = build_model(family_config("keypoint", tiny_config, *map_options(_ONE_MAP))).train()
    compile_losses(optimize_for_training(model), "eager")
    torch._dynamo.utils.counters.clear()
    for k, (counts, regions) in enumerate([((2, 1), 0), ((0, 0), 1), ((4, 4), 2), ((1, 7), 5)]):
        images, targets = make_batch(*counts)
        images = [image.repeat(1, 2, 1 + k % 2) for image in images]
        for image, target in zip(images, targets, strict=True):
            target["masks"] = torch.ones(len(target["boxes"]), *image.shape[1:], dtype=torch.bool)
            target["ignored_boxes"] = torch.tensor([[1.0, 2, 30, 40]]).repeat(regions, 1)
        model(images, targets)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == len(model.training_parts())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "optimized"), [("all heads", False), ("all heads", True), ("retinanet", True)]
)
def test_compiled_inference_equals_eager_inference(case, optimized):
    """Also with other weights, which need no new compilation."""
    model = shallow_model(case).eval()
    sides = [((64, 96), (80, 72)), ((96, 128), (64, 64), (128, 96))]
    batches = [[torch.rand(3, *size) for size in sizes] for sizes in sides]
    counters = torch._dynamo.utils.counters
    counters.clear()
    graphs = []
    with torch.no_grad():
        for _ in range(2):
            eager = optimize(model, "float32") if optimized else model
            compiled = compile_parts(eager, PARTS, "aot_eager")
            for images in batches:
                batch = model.prepare(images)
                assert_same_detections(compiled.predict(*batch), eager.predict(*batch))
            graphs.append(counters["stats"]["unique_graphs"])
            for parameter in model.parameters():
                parameter.mul_(1.01)
    assert graphs[0] == graphs[1] > 0
    assert not counters["graph_break"]


@pytest.mark.parametrize(
    "name", ["keypoint", "cascade", "passes", "fast", "extra", "retinanet", "proposals"]
)
def test_inference_calls_the_compiled_parts_of_every_model(monkeypatch, name):
    called = set()

    def compile_function(function: Any, **options: Any) -> Any:
        def call(*arguments: Any) -> Any:
            called.add(getattr(function, "__self__", None))
            return function(*arguments)

        return call

    model = build_model(family_config(name, tiny_config, *ALL_SCORES)).eval()
    images, _, proposals = family_batch(model)
    monkeypatch.setattr(torch, "compile", compile_function)
    compiled = compile_parts(model, PARTS)
    compiled.predict(images, proposals)
    assert called <= {None}  # gradients are not compiled
    with torch.no_grad():
        assert_same_detections(
            compiled.predict(images, proposals), model.predict(images, proposals)
        )
    parts = {module for path, module in model.named_modules() if path.rpartition(".")[2] in PARTS}
    assert called - {None} == parts
    assert compiled.backbone is not model.backbone


def test_the_losses_of_copies_and_without_gradients_are_not_compiled(make_batch, monkeypatch):
    model = build_model(family_config("mask", tiny_config)).train()
    compile_losses(model, "eager")

    def fail(*args: Any) -> None:
        raise AssertionError("compiled")

    for module, method in model.training_parts():
        monkeypatch.setattr(getattr(module, method), "_compiled", fail)
    with torch.no_grad():
        model(*make_batch(1))
    with pytest.raises(AssertionError, match="compiled"):
        model(*make_batch(1))
    copied = deepcopy(model)
    losses = copied(*make_batch(1))
    torch.stack(list(losses.values())).sum().backward()
    assert all(p.grad is None for p in model.parameters())
    assert any(p.grad is not None for p in copied.parameters())


def test_a_missing_compiler_is_one_warning(make_batch, monkeypatch, caplog):
    monkeypatch.setattr(torch, "compile", _broken)
    model = compile_losses(build_model(family_config("mask", tiny_config)).train())
    assert compile_parts(model, PARTS) is model
    (record,) = caplog.records
    assert "no effect" in record.message
    assert "no C++ compiler" in record.message
    assert "\n" not in record.message
    assert model(*make_batch(1))


def _broken(function: Any, **options: Any) -> Any:
    def call(*args: Any) -> None:
        raise RuntimeError("no C++ compiler\nlong trace")

    return call


@pytest.mark.parametrize("gradients", [False, True])
def test_errors_of_the_compiler_name_the_key(gradients):
    def fail(graph: Any, inputs: Any) -> Any:
        if len(inputs) > 1:  # not the test of the compiler
            raise RuntimeError("unsupported operator\nlong trace")
        return graph

    # torch compiles gradients once more in `backward` if they cannot be compiled before.
    backend: Any = aot_autograd(fw_compiler=nop, bw_compiler=fail) if gradients else fail
    model: Any = new_toy(noise=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    config = tiny_config("SOLVER.IMS_PER_BATCH", 1, "MODEL.COMPILE", True)
    step = TrainStep(config, model, optimizer, scaler)
    compile_losses(model, backend)
    target = {"boxes": torch.ones(1, 4), "labels": torch.tensor([1])}
    with pytest.raises(ConfigError, match=r"unsupported operator\).*set MODEL\.COMPILE False"):
        step([torch.ones(3, 8, 8)], [target])
