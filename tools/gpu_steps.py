"""The steps of tools/gpu_check.py.

    python tools/gpu_steps.py calls cuda

Each step runs in a separate process, because a process cannot continue after an error on the GPU. A
step prints its results and exits with status 0 if it passes. With "cpu" instead of "cuda", steps
run as far as possible on the CPU, which tests the steps themselves.
"""

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

from detlite import ops

ROOT = Path(__file__).resolve().parents[1]
OPERATORS_TESTS = ROOT / "tests" / "ops"
CASES = types.SimpleNamespace(**runpy.run_path(str(OPERATORS_TESTS / "cuda_on_cpu" / "cases.py")))


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


@contextmanager
def side_stream(device: str) -> Iterator[None]:
    """Run the `with` block on another stream, which is busy at first."""
    if device != "cuda":
        yield
        return
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        yield
    torch.cuda.current_stream().wait_stream(stream)


def copy_tensors(value: Any) -> Any:
    if isinstance(value, list):
        return [copy_tensors(item) for item in value]
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    return value


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from tensors_in(item)


def same(actual: list[Tensor], expected: list[Tensor]) -> bool:
    """Return True if all tensors are equal to the last bit. NaN equals NaN."""
    pairs = zip(actual, expected, strict=True)
    return all(torch.allclose(a, b, 0, 0, equal_nan=True) for a, b in pairs)


def differences(actual: list[Tensor], expected: list[Tensor]) -> str:
    """Describe differences beyond rounding errors. Integers must be equal."""
    try:
        torch.testing.assert_close([x.cpu() for x in actual], expected, equal_nan=True)
    except AssertionError as error:
        return str(error)
    return ""


def report(name: str, error: str) -> bool:
    print(f"{name}: {error or 'ok'}", flush=True)
    return not error


# ---- Steps. Each returns True if it passes.


def calls(device: str) -> bool:
    """Run every small case once and compare it with the CPU kernels."""
    passed = True
    for name, run in CASES.CASES.items():
        expected = CASES.results(*CASES.inputs(run))
        actual = CASES.results(*CASES.inputs(run, device))
        synchronize(device)
        passed &= report(name, differences(actual, expected))
    return passed


def tests(device: str) -> bool:
    """Run the tests of the operators and, with yacs, of whole models on the device."""
    import pytest

    selection = f"{device} and not cuda_on_cpu"
    options = ["-q", "-k", selection, "-p", "no:cacheprovider"]
    if importlib.util.find_spec("yacs"):
        folders = [OPERATORS_TESTS, ROOT / "tests" / "modeling"]
    else:  # without the conftest.py in tests/, which needs yacs
        folders = [OPERATORS_TESTS]
        options += [f"--confcutdir={OPERATORS_TESTS}", "--continue-on-collection-errors"]
    return pytest.main([*options, *map(str, folders)]) == 0


def large(device: str, count: int = 100_000) -> bool:
    """Run large inputs twice. Results must be reproducible and match the CPU kernels."""
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

    cases: dict[str, Callable[[], Any]] = {
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
    passed = True
    for name, run in cases.items():
        expected = CASES.results(*CASES.inputs(run))
        function, arguments = CASES.inputs(run, device)
        actual = CASES.results(function, arguments)
        repeated = same(actual, CASES.results(function, arguments))
        error = differences(actual, expected)
        passed &= report(name, error if repeated else f"two calls differ. {error}")
    return passed


def stream(device: str) -> bool:
    """Run on a stream other than the default one, with inputs that are computed late."""
    passed = True
    for name, run in CASES.CASES.items():
        function, arguments = CASES.inputs(run, device)
        expected = CASES.results(function, arguments)
        with side_stream(device):
            late_arguments = copy_tensors(arguments)
            actual = CASES.results(function, late_arguments)
        synchronize(device)
        passed &= report(name, "" if same(actual, expected) else "different result")
    return passed


# Operators with result shapes that depend on values, which the host must read.
DYNAMIC_SHAPES = (ops.nms, ops.batched_nms)


def graph(device: str) -> bool:
    """Capture each case with gradients in a CUDA graph and replay it on other inputs."""
    passed = True
    for name, run in CASES.CASES.items():
        function, arguments = CASES.inputs(run, device)
        if function in DYNAMIC_SHAPES:
            continue
        _, new_arguments = CASES.inputs(run, device, seed=1)
        expected = CASES.results(function, new_arguments)
        if device == "cuda":
            with side_stream(device):
                CASES.results(function, arguments)
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured):
                actual = CASES.results(function, arguments)
        with torch.no_grad():
            tensors = tensors_in(arguments), tensors_in(new_arguments)
            for tensor, new_tensor in zip(*tensors, strict=True):
                tensor.copy_(new_tensor)
        if device == "cuda":
            captured.replay()
        else:
            actual = CASES.results(function, arguments)
        synchronize(device)
        passed &= report(
            name, "" if same(actual, expected) else "the replay returns a different result"
        )
    return passed


def bad_index(device: str) -> bool:
    """Check that a RoI with an image index outside of the batch is an error."""
    maps = torch.zeros(2, 8, 10, 10, device=device)
    rois = torch.tensor([[0.0, 0, 0, 9, 9], [7, 0, 0, 9, 9]], device=device)
    try:
        ops.roi_align(maps, rois, 3)
        synchronize(device)
    except RuntimeError as error:
        print(str(error).splitlines()[0])
        return True
    return report("roi_align", "no error for image 7 of 2")


def invalid_arguments(device: str) -> bool:
    """Check that operators refuse tensors of a wrong shape, instead of ending the process."""
    maps, boxes = torch.zeros(2, 9, 9, device=device), torch.zeros(2, 4, device=device)
    calls = {
        "heatmap_peaks": lambda: ops.heatmap_peaks(maps, boxes),
        "nms": lambda: ops.nms(maps, boxes[:, 0], 0.5),
    }
    passed = True
    for name, call in calls.items():
        print(name, flush=True)
        error = "no error for a wrong shape"
        try:
            call()
        except RuntimeError as refused:
            error = "" if "must have" in str(refused) else str(refused)
        passed &= report(name, error)
    return passed


def training(device: str) -> bool:
    """Run a training step of a small Mask R-CNN in which the host must not wait for the device."""
    from detlite.config import load_config
    from detlite.modeling import build_model
    from detlite.modeling.optimize_for_training import optimize_for_training

    config = load_config(str(ROOT / "configs" / "demo_shapes.yaml"), ["MODEL.DEVICE", device])
    model = optimize_for_training(build_model(config).to(device).train())
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

    step()  # initialization may wait
    if device == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    loss = step()
    if device == "cuda":
        torch.cuda.set_sync_debug_mode("default")
    error = "" if bool(loss.isfinite()) else f"the loss is {float(loss)}"
    return report("training step", error)


_ALL = (calls, tests, large, stream, graph, bad_index, invalid_arguments, training)
STEPS = {step.__name__: step for step in _ALL}

if __name__ == "__main__":
    sys.exit(0 if STEPS[sys.argv[1]](sys.argv[2]) else 1)
