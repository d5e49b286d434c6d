"""Test which devices use the fallbacks, their memory, and their agreement with the kernels.

The tests of each operator also run on its fallback, see tests/ops/conftest.py.
"""

import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torchgen
import torchvision  # noqa: F401 (registers its operators)
import yaml
from torch.utils._python_dispatch import TorchDispatchMode

from detlite import ops
from detlite.ops import dispatch
from tests.ops import fuzz
from tests.ops.roi_cases import features, ordinary_rois

OTHER_BACKENDS = ["MPS", "XPU", "PrivateUse1"]


@pytest.fixture
def warnings(caplog) -> Iterator[pytest.LogCaptureFixture]:
    dispatch._warn.cache_clear()
    with caplog.at_level(logging.WARNING):
        yield caplog
    dispatch._warn.cache_clear()


@pytest.mark.parametrize("key", OTHER_BACKENDS)
@pytest.mark.parametrize("name", dispatch.FALLBACKS)
def test_other_backends_have_every_operator(name, key):
    computed = torch._C._dispatch_has_computed_kernel_for_dispatch_key
    assert computed(f"detlite::{name}", key)
    assert not torch._C._dispatch_has_kernel_for_dispatch_key(f"detlite::{name}", key)


def test_has_kernels():
    assert ops.has_kernels("cpu")
    assert not ops.has_kernels(torch.device("mps"))


def test_the_cpu_uses_its_kernels(monkeypatch):
    called: list[str] = []
    monkeypatch.setattr(dispatch, "_warn", called.append)  # every fallback calls it
    ops.nms(torch.rand(3, 4), torch.rand(3), 0.5)
    ops.roi_align(features(), ordinary_rois(3), 3, 0.25)
    assert not called


@pytest.mark.parametrize(
    ("kind", "hip", "home"),
    [("cuda", None, "CUDA_HOME"), ("cuda", "7.0", "ROCM_HOME"), ("mps", None, "")],
)
def test_warning_of_a_device_says_how_to_build(warnings, monkeypatch, kind, hip, home):
    monkeypatch.setattr(torch.version, "hip", hip)
    for _ in range(2):
        dispatch._warn(kind)
    assert warnings.text.count(f"no compiled kernels for {kind}") == 1
    assert warnings.text.count(f"Build detlite with {home} set" if home else "_HOME") == bool(home)


def test_devices_without_torchvision_kernels_use_the_cpu():
    assert dispatch._runs("torchvision", "cpu")
    assert not dispatch._runs("torchvision", "privateuseone")
    assert not dispatch._runs("cpu", "cuda")
    assert dispatch._runs("any", "privateuseone")


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(80), range(80, 300)])
def test_random_inputs_agree_with_the_kernels(seeds):
    """Maps and masks of any form, boxes anywhere, infinite and NaN, forward and backward."""
    others = [fuzz.suppression, fuzz.matching, fuzz.pasting, fuzz.keypoints, fuzz.focal_loss]
    for seed in seeds:
        rng = random.Random(seed)
        torch.manual_seed(seed)
        make = rng.choice([fuzz.pooling, fuzz.pooling, *others])
        run = make(rng)
        expected = run()
        with dispatch.use_fallback_ops():
            assert not fuzz.differ(run(), expected), f"seed {seed}: {make.__name__}"


class OperationRecorder(TorchDispatchMode):
    """Records the names of torch's own operations, decomposed."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        with self:
            parts = func.decompose(*args, **(kwargs or {}))
        if parts is not NotImplemented:
            return parts
        if func.namespace == "aten":
            self.names.add(str(func).removeprefix("aten.").removesuffix(".default"))
        return func(*args, **(kwargs or {}))


def has_kernel(name: str, backend: str, known: dict[str, dict[str, Any]]) -> bool:
    """Return True if torch lists a kernel of an operation for a backend, or for all."""
    entry = known[name]
    if "structured_delegate" in entry:
        return has_kernel(entry["structured_delegate"], backend, known)
    keys = {key.strip() for keys in entry.get("dispatch", {}) for key in keys.split(",")}
    return not keys or backend in keys or any(key.startswith("Composite") for key in keys)


def test_called_operations_have_mps_kernels(monkeypatch):
    file = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
    entries = yaml.load(file.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    known = {entry["func"].partition("(")[0]: entry for entry in entries}
    assert not has_kernel("linalg_eig", "MPS", known)
    recorder = OperationRecorder()

    def recording(kernel: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            with recorder:  # around the operator, it would see only the operator
                return kernel(*arguments)

        return run

    kernels = {name: recording(kernel) for name, kernel in dispatch.FALLBACKS.items()}
    monkeypatch.setattr(dispatch, "FALLBACKS", kernels)
    cases = [fuzz.pooling, fuzz.suppression, fuzz.matching, fuzz.keypoints, fuzz.focal_loss]
    for seed in range(60):
        torch.manual_seed(seed)
        run = cases[seed % len(cases)](random.Random(seed))
        with dispatch.use_fallback_ops():
            run()
    assert {"nonzero", "sort.stable", "upsample_bicubic2d"} <= recorder.names
    assert not [name for name in sorted(recorder.names) if not has_kernel(name, "MPS", known)]
