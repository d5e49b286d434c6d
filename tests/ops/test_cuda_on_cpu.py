"""Runs the code of csrc/cuda on the CPU: compiled against a stand-in for CUDA's runtime, and
registered as the CPU's kernels in a copy of the package, it must pass the operators' own tests.

What this cannot show: races within a block, and whatever the GPU's compiler does differently.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from torch.utils import cpp_extension

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FLAGS = ["-O1", "-std=c++17", "-shared", "-fPIC", "-ffp-contract=off"]
# As in setup.py.
DEFINES = ["-DTORCH_TARGET_VERSION=0x020b000000000000", "-DPy_LIMITED_API=0x030a0000"]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of detlite whose CPU kernels are the CUDA ones."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs Linux and a C++ compiler")
    folder = tmp_path_factory.mktemp("cuda_on_cpu")
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "detlite", folder / "detlite", ignore=ignored)
    sources = [str(ROOT / "csrc" / "module.cpp")]
    for kernel in sorted((ROOT / "csrc" / "cuda").glob("*.cu")):
        before, key, after = kernel.read_text().partition("IMPL(detlite, CUDA, m)")
        assert key, f"{kernel.name} registers nothing for CUDA"
        sources.append(str(folder / f"{kernel.stem}.cpp"))
        Path(sources[-1]).write_text(before + "IMPL(detlite, CPU, m)" + after)
    includes = [
        HERE / "cuda_on_cpu",
        ROOT / "csrc",
        ROOT / "csrc" / "cuda",
        cpp_extension.include_paths()[0],
        sysconfig.get_paths()["include"],
    ]
    command = [compiler, *FLAGS, *DEFINES, *(f"-I{path}" for path in includes), *sources]
    command += [f"-L{cpp_extension.TORCH_LIB_PATH}", "-lc10", "-ltorch", "-ltorch_cpu"]
    command += ["-o", str(folder / "detlite" / "_C.abi3.so")]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder


def run(package: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(package), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, cwd=package, capture_output=True, text=True)


def test_the_copy_is_what_runs(package):
    found = run(package, "-c", "from detlite import _C; print(_C.__file__)")
    assert found.stdout.strip() == str(package / "detlite" / "_C.abi3.so"), found.stderr


# Left out: what is about the Python side. Two gradients of pyramids stand for the rest, which
# takes minutes.
ONE_CALL = "2-False-dtype1-channels_last or (pool_is_one_call and strided)"
PYRAMID = f"empty or torchvisions or {ONE_CALL}"


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("nms", "not (opcheck or traces)"),
        ("padded_nms", "not (opcheck or traces)"),
        ("match_boxes", "not (opcheck or traces)"),
        ("roi_align", "not (opcheck or traces)"),
        ("roi_pool", "not (opcheck or traces)"),
        ("rois", "not trace"),
        ("pyramid", PYRAMID),
        ("focal_loss", "not (opcheck or traces)"),
        ("crop_masks", "not (opcheck or traces)"),
        ("heatmap_peaks", "not (opcheck or traces)"),
    ],
)
def test_kernels_pass_the_operators_tests(package, name, chosen):
    options = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", f"cpu-default and ({chosen})"]
    tests = run(package, *options, str(HERE / f"test_{name}.py"))
    assert tests.returncode == 0, tests.stdout[-5000:]
