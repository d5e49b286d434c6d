"""The steps of tools/gpu_check.py, each for a process of its own: after an error on the GPU nothing
else can run in the same one. Each prints what it found and ends with status 0 where all is well.

    python tools/gpu_steps.py calls cuda

With "cpu" for "cuda" a step runs as far as it can, which is how the steps themselves are tested.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
OPERATORS_TESTS = ROOT / "tests" / "ops"


def allow_operators_alone() -> None:
    """Where yacs is missing, makes detlite.ops importable without the rest of the package."""
    if importlib.util.find_spec("yacs") is None and "detlite" not in sys.modules:
        found = importlib.util.find_spec("detlite")
        if found is None:
            raise SystemExit(
                "detlite cannot be found: install it, or name its folder in PYTHONPATH"
            )
        package = types.ModuleType("detlite")
        package.__path__ = list(found.submodule_search_locations or [])
        sys.modules["detlite"] = package
        importlib.import_module("detlite._C")  # registers the operators


allow_operators_alone()
from detlite import ops  # noqa: E402

CASES = types.SimpleNamespace(**runpy.run_path(str(OPERATORS_TESTS / "cuda_on_cpu" / "cases.py")))


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


@contextmanager
def side_stream(device: str) -> Iterator[None]:
    """Work within is on another stream, which is busy at first."""
    if device != "cuda":
        yield
        return
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        yield
    torch.cuda.current_stream().wait_stream(stream)


def copied(value: Any) -> Any:
    if isinstance(value, list):
        return [copied(item) for item in value]
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    return value


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from tensors_in(item)


def same(found: list[Tensor], expected: list[Tensor]) -> bool:
    """To the last bit; NaNs are equal."""
    pairs = zip(found, expected, strict=True)
    return all(torch.allclose(a, b, 0, 0, equal_nan=True) for a, b in pairs)


def differences(found: list[Tensor], expected: list[Tensor]) -> str:
    """What differs more than sums in another order do; whole numbers may not differ at all."""
    try:
        torch.testing.assert_close([x.cpu() for x in found], expected, equal_nan=True)
    except AssertionError as error:
        return str(error)
    return ""


def report(name: str, fault: str) -> bool:
    print(f"{name}: {fault or 'ok'}", flush=True)
    return not fault


# ---- Steps: each returns whether all is well


def calls(device: str) -> bool:
    """Every small case once, against the CPU's kernels."""
    well = True
    for name, run in CASES.CASES.items():
        expected = CASES.results(*CASES.inputs(run))
        found = CASES.results(*CASES.inputs(run, device))
        synchronize(device)
        well &= report(name, differences(found, expected))
    return well


def tests(device: str) -> bool:
    """The operators' own tests on the device."""
    import pytest

    chosen = f"{device} and not cuda_on_cpu"
    # The folder's own conftest.py alone: the one above it needs yacs.
    options = ["-q", "-k", chosen, "-p", "no:cacheprovider", f"--confcutdir={OPERATORS_TESTS}"]
    if importlib.util.find_spec("yacs") is None:
        options.append("--continue-on-collection-errors")
    return pytest.main([*options, str(OPERATORS_TESTS)]) == 0


def large(device: str, count: int = 100_000) -> bool:
    """Many boxes twice: the same to the last bit, and what the CPU's kernels give."""
    extent = 4.0 * count**0.5

    def boxes(*shape: int) -> Tensor:
        corner = torch.rand(*shape, 2) * extent
        return torch.cat([corner, corner + torch.rand(*shape, 2) * 60 + 4], -1)

    def padded() -> Any:
        half = count // 2
        groups, valid = torch.randint(0, 5, (2, half)), torch.rand(2, half) > 0.1
        return ops.padded_nms, [boxes(2, half), torch.rand(2, half), groups, valid, 0.7, 2000]

    def align() -> Any:
        maps = torch.randn(4, 8, 100, 120, requires_grad=True)
        rois = torch.cat([torch.randint(0, 4, (count, 1)).float(), boxes(count) / extent * 400], 1)
        return ops.roi_align, [maps, rois, 3, 0.25, 2]

    def pool() -> Any:
        _, arguments = align()
        return ops.roi_pool, arguments[:-1]

    many: dict[str, Callable[[], Any]] = {
        "nms": lambda: (ops.nms, [boxes(count), torch.rand(count), 0.5]),
        "batched_nms": lambda: (
            ops.batched_nms,
            [boxes(count), torch.rand(count), torch.randint(0, 80, (count,)), 0.5],
        ),
        "padded_nms": padded,
        "match_boxes": lambda: (
            ops.match_boxes,
            [boxes(2, 100), torch.rand(2, 100) > 0.1, boxes(count)],
        ),
        "roi_align": align,
        "roi_pool": pool,
    }
    well = True
    for name, run in many.items():
        expected = CASES.results(*CASES.inputs(run))
        function, arguments = CASES.inputs(run, device)
        found = CASES.results(function, arguments)
        repeated = same(found, CASES.results(function, arguments))
        fault = differences(found, expected)
        well &= report(name, fault if repeated else f"two calls differ. {fault}")
    return well


def stream(device: str) -> bool:
    """On a stream that is not the default one, after work that its inputs wait for."""
    well = True
    for name, run in CASES.CASES.items():
        function, arguments = CASES.inputs(run, device)
        expected = CASES.results(function, arguments)
        with side_stream(device):
            late = copied(arguments)
            found = CASES.results(function, late)
        synchronize(device)
        well &= report(name, "" if same(found, expected) else "another result")
    return well


# Their results' shapes come from the host's reading of values.
SHAPED_BY_VALUES = ("nms", "batched_nms")


def graph(device: str) -> bool:
    """Captured in a graph, with gradients, and replayed on other inputs."""
    well = True
    for name, run in CASES.CASES.items():
        if name in SHAPED_BY_VALUES:
            continue
        function, arguments = CASES.inputs(run, device)
        _, others = CASES.inputs(run, device, seed=1)
        expected = CASES.results(function, others)
        if device == "cuda":
            with side_stream(device):
                CASES.results(function, arguments)
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured):
                found = CASES.results(function, arguments)
        with torch.no_grad():
            for own, other in zip(tensors_in(arguments), tensors_in(others), strict=True):
                own.copy_(other)
        if device == "cuda":
            captured.replay()
        else:
            found = CASES.results(function, arguments)
        synchronize(device)
        well &= report(name, "" if same(found, expected) else "the replay gives another result")
    return well


def bad_index(device: str) -> bool:
    """A RoI of an image that there is not must be an error."""
    maps = torch.zeros(2, 8, 10, 10, device=device)
    rois = torch.tensor([[0.0, 0, 0, 9, 9], [7, 0, 0, 9, 9]], device=device)
    try:
        ops.roi_align(maps, rois, 3)
        synchronize(device)
    except RuntimeError as error:
        print(str(error).splitlines()[0])
        return True
    return report("roi_align", "no error for image 7 of 2")


def training(device: str) -> bool:
    """A step of a small Mask R-CNN in which the host may not wait for the device."""
    from detlite.config import load_config
    from detlite.modeling import build_model
    from detlite.structures.padding import fixed_shapes

    config = load_config(str(ROOT / "configs" / "demo_shapes.yaml"), ["MODEL.DEVICE", device])
    model = build_model(config).to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    images = [torch.randint(0, 255, (3, 144, 160), dtype=torch.uint8) for _ in range(2)]
    masks = torch.zeros(2, 144, 160, dtype=torch.uint8)
    masks[0, 20:90, 30:100] = masks[1, 60:120, 80:150] = 1
    boxes = torch.tensor([[30.0, 20, 100, 90], [80, 60, 150, 120]])
    labels = torch.tensor([1, 2])
    targets = [{"boxes": boxes, "labels": labels, "masks": masks, "image_id": i} for i in range(2)]

    def step() -> Tensor:
        losses = sum(model(images, targets).values())
        optimizer.zero_grad()
        losses.backward()
        optimizer.step()
        return losses

    with fixed_shapes():
        step()  # what is made once may wait
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("error")
        loss = step()
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("default")
    fault = "" if bool(loss.isfinite()) else f"the loss is {float(loss)}"
    return report("training step", fault)


STEPS = {step.__name__: step for step in (calls, tests, large, stream, graph, bad_index, training)}

if __name__ == "__main__":
    sys.exit(0 if STEPS[sys.argv[1]](sys.argv[2]) else 1)
