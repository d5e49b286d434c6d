"""Builds detlite._C, the compiled kernels, and nothing else; the metadata is in pyproject.toml.

CUDA kernels are built when CUDA_HOME names a toolkit (a folder with bin/nvcc) or DETLITE_CUDA=1
asks for them; DETLITE_CUDA=0 leaves them out. Whether the machine has a GPU is never asked.
With a torch that is built for ROCm, torch's hipify makes HIP of them, in csrc/hip, where ROCM_HOME
or ROCM_PATH is set or DETLITE_CUDA=1 asks for it.
TORCH_CUDA_ARCH_LIST chooses the GPU generations (PYTORCH_ROCM_ARCH those of AMD) and MAX_JOBS the
parallel compilers, as for any torch extension.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
# Turing to Hopper as machine code; later generations compile the PTX when they first load it.
CUDA_ARCHITECTURES = "7.5;8.0;9.0+PTX"
# CDNA 2 and 3, RDNA 2 and 3. torch's own default is the cards of the machine that builds.
ROCM_ARCHITECTURES = "gfx90a;gfx942;gfx1030;gfx1100"
# The oldest torch whose stable ABI the kernels use: one binary runs on it and on every later one.
TORCH_TARGET = (2, 11)
TORCH_TARGET_VERSION = f"0x{TORCH_TARGET[0]:02x}{TORCH_TARGET[1]:02x}000000000000"
DEFINES = [f"-DTORCH_TARGET_VERSION={TORCH_TARGET_VERSION}"]
# No errno and no floating-point traps, which no kernel reads: comparisons in loops would else not
# vectorise. No fused multiply-add but where the source asks for one, so that every instruction set
# rounds alike.
CXX_FLAGS = [
    "-O3",
    "-std=c++17",
    "-Wall",
    "-Wextra",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
]
# Of the linker that Linux has; that of macOS knows neither, and drops what is not used by itself.
LINK_FLAGS = ["-Wl,-O1", "-Wl,--as-needed"] if sys.platform == "linux" else []
NVCC_FLAGS = ["-O3", "-std=c++17", "-Xcompiler=-Wall,-Wextra,-fvisibility=hidden"]
# No contraction: rounded_product() counts on it there. Clang warns of loops that it does not unroll
# as asked.
HIPCC_FLAGS = ["-O3", "-std=c++17", "-fvisibility=hidden", "-ffp-contract=off", "-Wno-pass-failed"]


def sources(*folders: str) -> list[str]:
    files = [path for folder in folders for path in (ROOT / folder).glob("*.c*")]
    return sorted(str(path.relative_to(ROOT)) for path in files)


def toolkit_of(nvcc: str) -> str:
    """The toolkit folder of an nvcc, which may be a script that calls the real one."""
    dry_run = subprocess.run(
        [nvcc, "--dryrun", "-x", "cu", os.devnull], capture_output=True, text=True
    )
    here = re.search(r"^#\$ _HERE_=(.+)$", dry_run.stderr, re.MULTILINE)
    return os.path.dirname(here[1] if here else os.path.dirname(os.path.realpath(nvcc)))


def prepare_gpu(torch: ModuleType) -> bool:
    """Whether kernels for GPUs are built; if so, readies what torch's compiler driver reads."""
    homes = ("ROCM_HOME", "ROCM_PATH") if torch.version.hip else ("CUDA_HOME",)
    asked = os.environ.get("DETLITE_CUDA", "")
    if asked not in ("", "0", "1"):
        raise SystemExit(f"DETLITE_CUDA must be 0 or 1, not {asked!r}")
    if asked == "0" or not (asked or any(os.environ.get(home) for home in homes)):
        return False
    if torch.version.hip:
        from torch.utils import cpp_extension

        compiler = Path(cpp_extension.ROCM_HOME or "/opt/rocm", "bin", "hipcc")
        if not compiler.exists():
            raise SystemExit(
                f"no ROCm compiler at {compiler}: set ROCM_HOME to the toolkit's folder, or "
                "DETLITE_CUDA=0 to build for the CPU alone"
            )
        os.environ["PYTORCH_ROCM_ARCH"] = os.environ.get("PYTORCH_ROCM_ARCH") or ROCM_ARCHITECTURES
        return True
    if torch.version.cuda is None:
        raise SystemExit(
            f"CUDA kernels need a torch built with CUDA, and torch {torch.__version__} is not: "
            "install one, or set DETLITE_CUDA=0 to build without CUDA"
        )
    # Both are read when cpp_extension is imported or when it builds.
    os.environ["CUDA_HOME"] = str(find_cuda())
    os.environ["TORCH_CUDA_ARCH_LIST"] = (
        os.environ.get("TORCH_CUDA_ARCH_LIST") or CUDA_ARCHITECTURES
    )
    return True


def find_cuda() -> Path:
    """The CUDA toolkit to build with."""
    home = os.environ.get("CUDA_HOME", "")
    if not home:
        on_path = shutil.which("nvcc")
        home = toolkit_of(on_path) if on_path else "/usr/local/cuda"
    toolkit = Path(home)
    if not (toolkit / "bin" / "nvcc").exists():
        raise SystemExit(
            f"no CUDA compiler at {toolkit}/bin/nvcc: set CUDA_HOME to the toolkit's folder, "
            "or DETLITE_CUDA=0 to build without CUDA"
        )
    return toolkit


class BuildPackage(build_py):
    """Puts the configs into the package, where an installed `detlite` finds them by name."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "detlite" / "configs"
            shutil.copytree(ROOT / "configs", target, dirs_exist_ok=True)


class BuildKernels(build_ext):
    """Hands the build to torch's compiler driver, imported only here: metadata needs no torch."""

    def run(self) -> None:
        try:
            import torch
        except ImportError as error:
            raise SystemExit(
                f"building detlite._C needs torch >= {TORCH_TARGET[0]}.{TORCH_TARGET[1]}, "
                f"which could not be imported: {error}"
            ) from error
        version = tuple(int(part) for part in torch.__version__.split(".")[:2])
        if version < TORCH_TARGET:
            raise SystemExit(
                f"detlite needs torch >= {TORCH_TARGET[0]}.{TORCH_TARGET[1]}; "
                f"this is torch {torch.__version__}"
            )
        gpu = prepare_gpu(torch)
        from torch.utils import cpp_extension

        (declared,) = self.distribution.ext_modules
        make = cpp_extension.CUDAExtension if gpu else cpp_extension.CppExtension
        # In two words: of one, torch makes -DUSE_HIP for ROCm, which its headers do not ask for.
        defines = [*DEFINES, "-D", "USE_CUDA"] if gpu else DEFINES
        # Messages of failed checks name files; not those of the machine that compiled them.
        headers = cpp_extension.include_paths()
        shown = [f"-ffile-prefix-map={path}/=" for path in (ROOT, *headers)]
        of_gpu = NVCC_FLAGS + [f"-Xcompiler={flag}" for flag in shown]
        if torch.version.hip:
            of_gpu = HIPCC_FLAGS + shown
        # What compilers say of torch's headers is not ours to mend: torch 2.14 has parameters
        # that it does not use.
        quiet = [word for path in headers for word in ("-isystem", path)]
        kernels = make(
            declared.name,
            declared.sources + (sources("csrc/cuda") if gpu else []),
            depends=declared.depends,
            py_limited_api=True,
            include_dirs=[str(ROOT / "csrc")],
            extra_compile_args={
                "cxx": [*CXX_FLAGS, *shown, *quiet, *defines],
                "nvcc": [*of_gpu, *quiet, *defines],
            },
            extra_link_args=LINK_FLAGS,
        )
        build = cpp_extension.BuildExtension(
            self.distribution, use_ninja=cpp_extension.is_ninja_available()
        )
        build.inplace, build.editable_mode = self.inplace, self.editable_mode
        build.build_lib, build.build_temp = self.build_lib, self.build_temp
        build.force, build.debug, build.verbose = self.force, self.debug, self.verbose
        self.distribution.ext_modules = [kernels]
        try:
            build.ensure_finalized()
            build.run()
        finally:
            self.distribution.ext_modules = [declared]


setup(
    ext_modules=[
        Extension(
            "detlite._C",
            sources("csrc", "csrc/cpu"),
            depends=sorted(str(path.relative_to(ROOT)) for path in (ROOT / "csrc").rglob("*.h")),
            py_limited_api=True,
        )
    ],
    cmdclass={"build_ext": BuildKernels, "build_py": BuildPackage},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
