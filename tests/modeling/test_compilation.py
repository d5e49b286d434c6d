"""Compiled losses: the same losses and gradients as without the compiler."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch

from detlite.errors import ConfigError
from detlite.modeling.build import build_model
from detlite.modeling.compilation import compile_losses
from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.optimize_for_training import optimize_for_training, use_static_shapes
from tests.modeling.family import family_config

Batch = tuple[list[torch.Tensor], list[dict[str, Any]]]


@pytest.fixture(autouse=True)
def empty_compiler(tmp_path, monkeypatch) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    yield
    torch._dynamo.reset()


def loss_and_gradients(model: DetectionModel, batch: Batch) -> Any:
    """Return the losses and gradients of lists of images and targets, with fixed samples."""
    model.train().zero_grad()
    torch.manual_seed(1)
    losses = model(*batch)
    torch.stack(list(losses.values())).sum().backward()
    return losses, {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def assert_same_steps(model: DetectionModel, batches: list[Batch]) -> None:
    eager = deepcopy(model)
    use_static_shapes(eager)
    compile_losses(model, "aot_eager")
    for batch in batches:
        expected, gradients = loss_and_gradients(eager, batch)
        losses, own = loss_and_gradients(model, batch)
        torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-6)
        assert own.keys() == gradients.keys()
        for name, gradient in gradients.items():
            scale = max(float(gradient.abs().max()), 1e-3)
            torch.testing.assert_close(own[name] / scale, gradient / scale, rtol=0, atol=1e-5)
    torch.testing.assert_close(model.state_dict(), eager.state_dict(), rtol=1e-5, atol=1e-6)


@pytest.mark.slow  # half a minute each
@pytest.mark.parametrize("name", ["cascade", "proposals"])
def test_compiled_steps_equal_eager_ones(tiny_config, make_batch, name):
    model = optimize_for_training(build_model(family_config(name, tiny_config)))
    batches = [make_batch(2, 1), make_batch(0, 4)]
    for batch in batches:
        for target in batch[1]:
            boxes = target["boxes"]
            target["proposals"] = boxes + 2
    assert_same_steps(model, batches)


def test_one_compilation_is_for_images_of_all_sizes(tiny_config, make_batch):
    model = build_model(family_config("proposals", tiny_config)).train()
    compile_losses(model, "eager")
    torch._dynamo.utils.counters.clear()
    for counts in ((2, 1), (0, 3), (4, 4)):
        images, targets = make_batch(*counts)
        model([image.repeat(1, 2, 1 + (counts[0] > 2)) for image in images], targets)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 1


def test_copies_and_evaluation_are_not_compiled(tiny_config, make_batch, monkeypatch):
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


def test_a_missing_compiler_is_one_warning(tiny_config, make_batch, monkeypatch, caplog):
    monkeypatch.setattr(torch, "compile", _broken)
    model = compile_losses(build_model(family_config("mask", tiny_config)).train())
    (record,) = caplog.records
    assert "no effect" in record.message
    assert "no C++ compiler" in record.message
    assert "\n" not in record.message
    assert model(*make_batch(1))


def _broken(function: Any, **options: Any) -> Any:
    def call(*args: Any) -> None:
        raise RuntimeError("no C++ compiler\nlong trace")

    return call


def test_errors_of_the_compiler_name_the_key(tiny_config, make_batch):
    def backend(graph: Any, inputs: Any) -> Any:
        if len(inputs) > 1:  # not the probe
            raise RuntimeError("unsupported operator\nlong trace")
        return graph

    model = compile_losses(build_model(family_config("mask", tiny_config)).train(), backend)
    with pytest.raises(ConfigError, match=r"unsupported operator.*set MODEL\.COMPILE False"):
        model(*make_batch(1))
