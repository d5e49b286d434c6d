"""Run on_other_device.py in a separate process, because the simulated device changes torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.slow
def test_models_on_a_device_without_kernels():
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [*command, str(HERE / "on_other_device.py")],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ran.returncode == 0, ran.stdout[-5000:] + ran.stderr[-5000:]
    assert " passed" in ran.stdout
