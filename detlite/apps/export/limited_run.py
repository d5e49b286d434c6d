"""Run an exported model once in a process with limits, before the own process runs it.

A file of some hundred bytes can describe constants of gigabytes, or work for days.
"""

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from detlite.errors import CheckpointError

_MEMORY = 2_000_000_000  # bytes, besides those in proportion to the file and the inputs
_SECONDS = 120  # of one processor
# The process has the modules of this one, and none of the current folder. It uses one core, because
# the libraries start a thread on each, whose stack counts as memory.
_CODE = """
import os, sys
if hasattr(os, "sched_setaffinity"):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, [cores[os.getpid() % len(cores)]])
sys.path[:] = sys.argv[4:]
from detlite.apps.export import limited_run
limited_run.main(*sys.argv[1:4])
"""


def run_limited(path: Path, inputs: Mapping[str, np.ndarray] | None = None) -> None:
    """Run a file of the format onnx on inputs, or one of openvino on images of zeros.

    Raises:
        CheckpointError: it fails, or takes too much memory or time.
    """
    inputs = inputs or {}
    memory = _MEMORY + 4 * path.stat().st_size + 100 * sum(x.nbytes for x in inputs.values())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "inputs.npz")
        np.savez(file, **inputs)  # type: ignore[arg-type]
        command = [sys.executable, "-c", _CODE, str(path), str(file), str(memory), *sys.path]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise CheckpointError(
            f"{path}: cannot be run with {memory / 1e9:.1f} GB of memory in {_SECONDS} seconds "
            f"({reason[:200]}). Export the checkpoint again with `detlite export`"
        )


def main(path: str, inputs: str, memory: str) -> None:
    """Run a file in this process, whose limits change."""
    if sys.platform != "win32":
        resource = import_module("resource")
        for kind, limit in ((resource.RLIMIT_DATA, int(memory)), (resource.RLIMIT_CPU, _SECONDS)):
            hard = resource.getrlimit(kind)[1]
            limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            resource.setrlimit(kind, (limit, hard))
    if path.endswith(".onnx"):
        open_session = import_module("onnxruntime").InferenceSession
        open_session(path, providers=["CPUExecutionProvider"]).run(None, dict(np.load(inputs)))
    else:
        _run_openvino(path)


def _run_openvino(path: str) -> None:
    openvino: Any = import_module("openvino")
    core = openvino.Core()
    with zipfile.ZipFile(path) as archive:
        for name in (x.removesuffix(".xml") for x in archive.namelist() if x.endswith(".xml")):
            weights = openvino.Tensor(np.frombuffer(archive.read(f"{name}.bin"), np.uint8))
            graph = core.read_model(archive.read(f"{name}.xml"), weights)
            sides = [1, 64, 64, 1]  # of axes of any length
            shapes = [
                [axis.get_length() if axis.is_static else side for axis, side in pairs]
                for pairs in (zip(x.partial_shape, sides, strict=False) for x in graph.inputs)
            ]
            request = core.compile_model(graph, "CPU").create_infer_request()
            # With one thread, OpenVINO's `infer` does not report that memory is missing.
            request.start_async([np.zeros(shape, np.float32) for shape in shapes])
            request.wait()
