"""Makes oracles.py importable beside the tests, and runs those that ask for a device on each,
with each set of inner loops that the processor has, and with the plain operators in place of the
CPU's kernels."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from detlite.ops import nms
from detlite.ops.fallback import instead_of_kernels

VARIABLE = "DETLITE_CPU_CAPABILITY"


DEVICES = ["cpu-default", "cpu-avx2", "cpu-avx512", "cuda"]
# Of the operators that have a plain form.
PLAIN_FILES = {
    "crop_masks",
    "focal_loss",
    "heatmap_peaks",
    "match_boxes",
    "nms",
    "padded_nms",
    "pyramid",
    "roi_align",
    "roi_pool",
    "rois",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        plain = Path(str(metafunc.module.__file__)).stem.removeprefix("test_") in PLAIN_FILES
        metafunc.parametrize("device", [*DEVICES, *["cpu-plain"] * plain], indirect=True)


@pytest.fixture
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name, _, capability = request.param.partition("-")
    if capability == "plain":
        with instead_of_kernels():
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


@pytest.fixture
def plain(request: pytest.FixtureRequest) -> bool:
    """Whether the test runs the plain operators: torch's products of matrices round by the
    matrices' sizes, so that one call and many agree to rounding and not to the bit."""
    return bool(request.node.callspec.params["device"] == "cpu-plain")
