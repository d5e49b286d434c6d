"""Run each test with the argument `device` on every implementation of the operators: with each
CPU instruction set of this machine, with the fallbacks, and on CUDA if present."""

from collections.abc import Iterator

import pytest
import torch

from detlite.ops import nms
from detlite.ops.dispatch import use_fallback_ops

VARIABLE = "DETLITE_CPU_CAPABILITY"
# test_fuzz.py compares the instruction sets in the fast suite.
DEVICES = [
    "cpu-default",
    pytest.param("cpu-avx2", marks=pytest.mark.slow),
    pytest.param("cpu-avx512", marks=pytest.mark.slow),
    "cpu-fallback",
    "cuda",
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" not in metafunc.fixturenames:
        return
    devices = DEVICES
    # Of the definitions, which are the same everywhere.
    if metafunc.function.__name__ in ("test_opcheck", "test_compiles_to_one_graph"):
        slow = pytest.param("cpu-fallback", marks=pytest.mark.slow)
        devices = ["cpu-default", slow, "cuda"]
    metafunc.parametrize("device", devices, indirect=True)


@pytest.fixture
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name, _, capability = request.param.partition("-")
    if capability == "fallback":
        with use_fallback_ops():
            yield name
        return
    if name == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")
        yield name
        return
    monkeypatch.setenv(VARIABLE, capability)
    try:
        nms(torch.zeros(1, 4), torch.zeros(1), 0.5)
    except RuntimeError as error:
        pytest.skip(str(error))
    yield name
