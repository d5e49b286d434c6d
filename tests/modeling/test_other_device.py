"""Run the tests of GPUs on a simulated device, in a process whose torch it changes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_models_on_a_device_without_kernels():
    file = Path(__file__).with_name("test_models_on_cuda.py")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(file)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "DETLITE_TEST_DEVICE": "other"}
    ran = subprocess.run(command, capture_output=True, text=True, env=env)
    assert ran.returncode == 0, ran.stdout[-5000:] + ran.stderr[-5000:]
    assert " passed" in ran.stdout
