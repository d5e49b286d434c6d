"""Makes oracles.py importable beside the tests, and runs those that ask for a device on each device
and with each set of inner loops that the processor has."""

import sys
from pathlib import Path

import pytest
import torch

from detlite.ops import nms

sys.path.insert(0, str(Path(__file__).parent))

VARIABLE = "DETLITE_CPU_CAPABILITY"


@pytest.fixture(params=["cpu-default", "cpu-avx2", "cpu-avx512", "cuda"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name, _, capability = request.param.partition("-")
    if name == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")
        return name
    monkeypatch.setenv(VARIABLE, capability)
    try:
        nms(torch.zeros(1, 4), torch.zeros(1), 0.5)
    except RuntimeError as error:
        pytest.skip(str(error))
    return name
