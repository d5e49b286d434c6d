"""Run the CUDA kernels on the CPU: csrc/cuda, compiled against an emulated CUDA runtime.

The kernels are registered as the CPU kernels of a copy of the package, which must pass the tests of
the operators. Threads and blocks run in random order. Each barrier is disabled once, to check that
it is necessary and that the test cases detect its absence (cuda_on_cpu/barriers.py). A second build
fuses multiplications and additions, as nvcc does. A third build uses the code for AMD GPUs with 64
threads per wavefront. The emulation cannot show the effects of simultaneous memory accesses, nor
the speed.

CUDA_ON_CPU_FLAGS adds compiler flags; `make sanitize` sets it.
"""

import os
import platform
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch.utils import cpp_extension

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ADDED = os.environ.get("CUDA_ON_CPU_FLAGS", "").split()
# A misaligned vector load ends the process.
FLAGS = ["-O1", "-std=c++17", "-fPIC", "-fno-strict-aliasing", "-fsanitize=alignment"]
FLAGS += ["-fno-sanitize-recover=all", *ADDED]
UNFUSED = ["-ffp-contract=off"]
ROCM = [*UNFUSED, "-DUSE_ROCM"]
FUSED = ["-ffp-contract=fast", "-mfma", "-fexpensive-optimizations"]
# As in setup.py.
DEFINES = ["-DTORCH_TARGET_VERSION=0x020b000000000000", "-DPy_LIMITED_API=0x030a0000"]

pytestmark = pytest.mark.slow


def build(folder: Path, rounding: list[str]) -> Path:
    """Copy detlite into a folder, with the CUDA kernels as its CPU kernels."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs Linux and a C++ compiler")
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "detlite", folder / "detlite", ignore=ignored)
    sources = [ROOT / "csrc" / "module.cpp", folder / "schemas.cpp"]
    sources[-1].write_text(schemas())
    for kernel in sorted((ROOT / "csrc" / "cuda").glob("*.cu")):
        before, key, after = kernel.read_text().partition("IMPL(detlite, CUDA, m)")
        assert key, f"{kernel.name} registers nothing for CUDA"
        sources.append(folder / f"{kernel.stem}.cpp")
        text = f'#line 1 "{kernel.name}"\n{before}IMPL(detlite, CPU, m){after}'
        sources[-1].write_text(text)
    includes = [
        HERE / "cuda_on_cpu",
        ROOT / "csrc",
        ROOT / "csrc" / "cuda",
        cpp_extension.include_paths()[0],
        sysconfig.get_paths()["include"],
    ]
    command = [compiler, *FLAGS, *rounding, *DEFINES, *(f"-I{path}" for path in includes)]

    def compiled(source: Path) -> str:
        target = str(folder / f"{source.stem}.o")
        first = ["-include", "cuda_runtime.h"] if source.parent == folder else []
        call([*command, *first, "-c", str(source), "-o", target])
        return target

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compiled, sources))
    libraries = [f"-L{cpp_extension.TORCH_LIB_PATH}", "-lc10", "-ltorch", "-ltorch_cpu"]
    target = str(folder / "detlite" / "_C.abi3.so")
    call([compiler, "-shared", *FLAGS, *objects, *libraries, "-o", target])
    return folder


def schemas() -> str:
    """Return a source with the schemas of all operators, without the CPU kernels next to them."""
    files = sorted((ROOT / "csrc").glob("*/*.cpp"))
    declared = re.compile(r"^STABLE_TORCH_LIBRARY_FRAGMENT.*?^}$", re.MULTILINE | re.DOTALL)
    blocks = [block for file in files for block in declared.findall(file.read_text())]
    return "\n".join(["#include <torch/csrc/stable/library.h>", *blocks])


def call(command: list[str]) -> str:
    # A preloaded sanitizer is meant for the tests, not for the compiler.
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("cuda_on_cpu"), UNFUSED)


@pytest.fixture(scope="module")
def rocm_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("rocm_on_cpu"), ROCM)


@pytest.fixture(scope="module")
def fused_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if ADDED:
        pytest.skip("one build is enough with other flags")
    if platform.machine() != "x86_64" or " fma " not in Path("/proc/cpuinfo").read_text():
        pytest.skip("needs a processor that fuses multiplications and additions")
    folder = build(tmp_path_factory.mktemp("fused_cuda_on_cpu"), FUSED)
    assert "vfmadd" in call(["objdump", "-d", str(folder / "roi_align.o")])
    return folder


def run(package: Path, *arguments: str, seed: int = 0) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join([str(package), str(HERE.parents[1])])  # the second one for tests/
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    environment["CUDA_ON_CPU_SEED"] = str(seed)
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, cwd=package, capture_output=True, text=True)


def test_subprocesses_use_the_copied_package(package):
    result = run(package, "-c", "from detlite import _C; print(_C.__file__)")
    assert result.stdout.strip() == str(package / "detlite" / "_C.abi3.so"), result.stderr


# Skips tests of the Python side, and all but two of the slow tests of pyramid gradients.
ONE_CALL = "(one_call and (align-2-float32-channels_last or pool-strided))"
SELECTED_TESTS = (
    "cpu-default and not (opcheck or trace) "
    f"and (not test_pyramid or empty or torchvision or {ONE_CALL})"
)
OPERATORS = [
    "nms padded_nms matching focal_loss",
    "masks keypoints",
    "roi_align roi_pool roi_operators roi_utils pyramid",
]


def run_operators_tests(package: Path, operators: str, seed: int) -> None:
    files = [str(HERE / f"test_{name}.py") for name in operators.split()]
    # The option keeps pytest from importing detlite from the checkout instead of the package.
    options = ["-q", "-o", "pythonpath=", "-p", "no:cacheprovider", "-k", SELECTED_TESTS]
    tests = run(package, "-m", "pytest", *options, *files, seed=seed)
    assert tests.returncode == 0, tests.stdout[-5000:] + tests.stderr[-5000:]


@pytest.mark.parametrize("operators", OPERATORS)
def test_kernels_pass_the_operators_tests(package, operators):
    run_operators_tests(package, operators, seed=1)


@pytest.mark.parametrize("operators", OPERATORS)
def test_fused_kernels_pass_the_operators_tests(fused_package, operators):
    run_operators_tests(fused_package, operators, seed=2)


@pytest.mark.parametrize("kind", ["package", "rocm_package"])
def test_every_barrier_is_necessary(kind, request, tmp_path):
    # Also compares the results with the CPU kernels.
    package = request.getfixturevalue(kind)
    folder = HERE / "cuda_on_cpu"
    ran = run(package, str(folder / "barriers.py"), str(tmp_path / "results.pt"))
    assert ran.returncode == 0, ran.stdout + ran.stderr[-5000:]
    results = torch.load(tmp_path / "results.pt")
    expected = runpy.run_path(str(folder / "cases.py"))["all_results"]()
    assert results.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(
            results[name], expected[name], equal_nan=True, msg=lambda text, n=name: f"{n}: {text}"
        )
