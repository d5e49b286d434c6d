"""Compile csrc/cuda for AMD GPUs, after torch's hipify, with the flags of setup.py.

Needs hipcc, for example from Debian's package hipcc, but no GPU.
"""

import os
import runpy
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import setuptools
from torch.utils import cpp_extension
from torch.utils.hipify import hipify_python

# With wavefronts of 64 and of 32 threads.
ARCHITECTURES = "gfx90a", "gfx1030"
# Replaces rocThrust, which torch's headers include.
THRUST = """
namespace thrust {
template <typename T> struct complex {
  __host__ __device__ complex(T, T);
  __host__ __device__ T real() const;
  __host__ __device__ T imag() const;
};
template <typename T> __host__ __device__ T arg(const complex<T>&);
template <typename T> __host__ __device__ complex<T> polar(T, T);
}
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def hipified(repo_root: Path, tmp_path: Path) -> list[Path]:
    if shutil.which("hipcc") is None:
        pytest.skip("needs hipcc from ROCm or from Debian's package hipcc")
    shutil.copytree(repo_root / "csrc", tmp_path / "csrc", ignore=shutil.ignore_patterns("hip"))
    sources = sorted((tmp_path / "csrc").rglob("*.c*"))
    # The same call as in torch's CUDAExtension.
    results = hipify_python.hipify(
        project_directory=str(tmp_path),
        output_directory=str(tmp_path),
        header_include_dirs=[str(tmp_path / "csrc")],
        includes=[str(tmp_path / "*")],
        extra_files=[str(source) for source in sources],
        is_pytorch_extension=True,
        hipify_extra_files_only=True,
        show_progress=False,
    )
    new = {Path(results[str(source)].hipified_path) for source in sources} - set(sources)
    assert {file.parent for file in new} == {tmp_path / "csrc" / "hip"}
    return sorted(new)


def test_kernels_compile_for_amd(hipified, repo_root, tmp_path, monkeypatch):
    monkeypatch.setattr(setuptools, "setup", lambda **options: None)
    setup = runpy.run_path(str(repo_root / "setup.py"))
    stub = tmp_path / "thrust" / "complex.h"
    stub.parent.mkdir()
    stub.write_text(THRUST)
    command = [
        "hipcc", *cpp_extension.COMMON_HIP_FLAGS, *cpp_extension.COMMON_HIPCC_FLAGS,
        *setup["HIPCC_FLAGS"], *setup["DEFINES"], "-D", "USE_CUDA", "-Werror", "-O1", "-c",
        *(f"--offload-arch={name}" for name in ARCHITECTURES),
        f"-I{tmp_path / 'csrc'}", f"-I{tmp_path}",
        *(f"-isystem{path}" for path in cpp_extension.include_paths()),
    ]  # fmt: skip
    # Debian's hipcc calls nvcc if it finds one.
    env = os.environ | {"HIP_PLATFORM": "amd"}

    def compiled(source: Path) -> str:
        done = subprocess.run(
            [*command, str(source), "-o", str(source.with_suffix(".o"))],
            env=env, capture_output=True, text=True,
        )  # fmt: skip
        return done.stderr if done.returncode else ""

    assert len(hipified) == len(list((repo_root / "csrc" / "cuda").glob("*.cu")))
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(compiled, hipified)) == [""] * len(hipified)
