"""Runs the code of csrc/cuda on the CPU: compiled against a stand-in for CUDA's runtime, and
registered as the CPU's kernels in a copy of the package, it must pass the operators' own tests.

Threads and blocks run in random order, and each barrier is taken out once to see that it is needed
and that the cases would show it (cuda_on_cpu/barriers.py). A second build fuses multiplications
and additions, as the GPU's compiler does. A third one takes what the sources have for AMD's GPUs,
of which 64 threads run together, and must give the same in the cases of barriers.py. What this
cannot show: what the hardware does to memory that is read and written at once, and how fast
anything is.

CUDA_ON_CPU_FLAGS adds flags of the compiler; `make sanitize` gives its own.
"""

import os
import platform
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
# A vector that is loaded from where it may not lie ends the process.
FLAGS = ["-O1", "-std=c++17", "-fPIC", "-fno-strict-aliasing", "-fsanitize=alignment"]
FLAGS += ["-fno-sanitize-recover=all", *ADDED]
PLAIN = ["-ffp-contract=off"]
ROCM = [*PLAIN, "-DUSE_ROCM"]
FUSED = ["-ffp-contract=fast", "-mfma", "-fexpensive-optimizations"]
# As in setup.py.
DEFINES = ["-DTORCH_TARGET_VERSION=0x020b000000000000", "-DPy_LIMITED_API=0x030a0000"]


def build(folder: Path, rounding: list[str]) -> Path:
    """Fills a folder with a copy of detlite whose CPU kernels are the CUDA ones."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs Linux and a C++ compiler")
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "detlite", folder / "detlite", ignore=ignored)
    sources = [ROOT / "csrc" / "module.cpp"]
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


def call(command: list[str]) -> str:
    # A sanitizer that is loaded first is for the tests, not for the compiler.
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("cuda_on_cpu"), PLAIN)


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
    environment = {**os.environ, "PYTHONPATH": str(package), "OMP_NUM_THREADS": "1"}
    environment["CUDA_ON_CPU_SEED"] = str(seed)
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, cwd=package, capture_output=True, text=True)


def test_the_copy_is_what_runs(package):
    found = run(package, "-c", "from detlite import _C; print(_C.__file__)")
    assert found.stdout.strip() == str(package / "detlite" / "_C.abi3.so"), found.stderr


# Left out: what is about the Python side. Two gradients of pyramids stand for the rest, which
# takes minutes.
ONE_CALL = "2-False-dtype1-channels_last or (pool_is_one_call and strided)"
CHOSEN = (
    "cpu-default and not (opcheck or trace) "
    f"and (not test_pyramid or empty or torchvisions or {ONE_CALL})"
)
OPERATORS = [
    "nms padded_nms match_boxes focal_loss",
    "crop_masks heatmap_peaks",
    "roi_align roi_pool rois pyramid",
]


def run_operators_tests(package: Path, operators: str, seed: int) -> None:
    files = [str(HERE / f"test_{name}.py") for name in operators.split()]
    options = ["-q", "-p", "no:cacheprovider", "-k", CHOSEN]
    tests = run(package, "-m", "pytest", *options, *files, seed=seed)
    assert tests.returncode == 0, tests.stdout[-5000:] + tests.stderr[-5000:]


@pytest.mark.parametrize("operators", OPERATORS)
def test_kernels_pass_the_operators_tests(package, operators):
    run_operators_tests(package, operators, seed=1)


@pytest.mark.parametrize("operators", OPERATORS)
def test_fused_kernels_pass_the_operators_tests(fused_package, operators):
    run_operators_tests(fused_package, operators, seed=2)


@pytest.mark.parametrize("kind", ["package", "rocm_package"])
def test_every_barrier_is_needed(kind, request, tmp_path):
    # In every order; and the results are those of the CPU's kernels.
    package = request.getfixturevalue(kind)
    folder = HERE / "cuda_on_cpu"
    ran = run(package, str(folder / "barriers.py"), str(tmp_path / "results.pt"))
    assert ran.returncode == 0, ran.stdout + ran.stderr[-5000:]
    found = torch.load(tmp_path / "results.pt")
    expected = runpy.run_path(str(folder / "cases.py"))["all_results"]()
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(
            found[name], expected[name], equal_nan=True, msg=lambda text, n=name: f"{n}: {text}"
        )
