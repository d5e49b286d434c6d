"""Build detlite._C, the compiled operators. The metadata of the package is in pyproject.toml.

Environment variables:
    DETLITE_KERNELS: 0 builds a pure-Python package, which needs no compiler; 1 makes a missing
        compiler an error. If it is not set, the package is pure if there is no compiler.
    DETLITE_CUDA: 1 compiles the operators for GPUs too, 0 only for the CPU. If it is not set, the
        toolkit's variable decides: CUDA_HOME (a folder with bin/nvcc), or ROCM_HOME or ROCM_PATH
        for a torch built for ROCm. A GPU is not required.
    TORCH_CUDA_ARCH_LIST, PYTORCH_ROCM_ARCH: GPU generations to compile for.
    CXX: C++ compiler.
    MAX_JOBS: number of parallel compiler processes.

For ROCm, torch's hipify translates csrc/cuda to HIP, in csrc/hip.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
WINDOWS = sys.platform == "win32"
# MSVC itself lacks the vector types of GCC and Clang, in which the CPU operators are written.
COMPILER = os.environ.get("CXX") or ("clang-cl" if WINDOWS else "c++")
NO_COMPILER = (
    f"there is no C++ compiler {COMPILER!r}. Install "
    f"{'LLVM and the Visual Studio build tools' if WINDOWS else 'GCC or Clang'}, or set CXX to "
    "another compiler, and install detlite again. Without compiled operators it uses slower ones "
    "of torch and torchvision."
)
# Machine code from Turing to Hopper. Later generations compile the PTX when they first load it.
CUDA_ARCHITECTURES = "7.5;8.0;9.0+PTX"
# CDNA 2 and 3, RDNA 2 and 3. The default of torch is the GPUs of the building machine.
ROCM_ARCHITECTURES = "gfx90a;gfx942;gfx1030;gfx1100"
# The operators use the stable ABI of this torch: one binary runs on it and on every later version.
OLDEST_TORCH = (2, 11)
DEFINES = [f"-DTORCH_TARGET_VERSION=0x{OLDEST_TORCH[0]:02x}{OLDEST_TORCH[1]:02x}000000000000"]
# Loops with comparisons vectorize only without errno and floating-point traps. Without automatic
# fused multiply-add, every instruction set rounds alike.
ARITHMETIC = ["-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"]
CXX_FLAGS = ["-O3", "-std=c++17", "-Wall", "-Wextra", "-fvisibility=hidden", *ARITHMETIC]
# clang-cl takes the options of MSVC, and those of Clang after a prefix.
CLANG_CL_FLAGS = ["/std:c++17", "/W4", *[f"/clang:{flag}" for flag in ("-O3", *ARITHMETIC)]]
# The linker of macOS does not know these options.
LINK_FLAGS = ["-Wl,-O1", "-Wl,--as-needed"] if sys.platform == "linux" else []
NVCC_FLAGS = ["-O3", "-std=c++17", "-Xcompiler=-Wall,-Wextra,-fvisibility=hidden"]
# rounded_product() needs -ffp-contract=off. The kernels ask for loop unrolling, and Clang warns
# where it does not follow.
HIPCC_FLAGS = ["-O3", "-std=c++17", "-fvisibility=hidden", "-ffp-contract=off", "-Wno-pass-failed"]


def with_kernels() -> bool:
    """Return False for a pure-Python package, by DETLITE_KERNELS or for lack of a compiler."""
    requested = flag("DETLITE_KERNELS")
    if requested is None and find_compiler() is None:
        print(f"detlite is built without compiled operators: {NO_COMPILER}", file=sys.stderr)
        return False
    return requested is not False


def flag(name: str) -> bool | None:
    """Return the value of an environment variable that is 0 or 1, or None if it is not set."""
    value = os.environ.get(name, "")
    if value not in ("", "0", "1"):
        raise SystemExit(f"{name} must be 0 or 1: got {value!r}")
    return None if value == "" else value == "1"


def sources(*folders: str) -> list[str]:
    files = [path for folder in folders for path in (ROOT / folder).glob("*.c*")]
    return sorted(str(path.relative_to(ROOT)) for path in files)


def find_compiler() -> str | None:
    """Return the path of the C++ compiler; None if there is none."""
    return shutil.which(shlex.split(COMPILER, posix=not WINDOWS)[0])


def prepare_gpu(torch: ModuleType) -> bool:
    """Return True if GPU operators are built, after setting what torch's compiler driver reads."""
    homes = ("ROCM_HOME", "ROCM_PATH") if torch.version.hip else ("CUDA_HOME",)
    requested = flag("DETLITE_CUDA")
    if WINDOWS:
        if requested:
            raise SystemExit(
                "DETLITE_CUDA=1 is not supported on Windows: set DETLITE_CUDA=0, or use Linux"
            )
        return False
    if requested is None:
        requested = any(os.environ.get(home) for home in homes)
    if not requested:
        return False
    if torch.version.hip:
        from torch.utils import cpp_extension

        compiler = Path(cpp_extension.ROCM_HOME or "/opt/rocm", "bin", "hipcc")
        if not compiler.exists():
            raise SystemExit(
                f"No ROCm compiler at {compiler}: set ROCM_HOME to the toolkit's folder, or "
                "DETLITE_CUDA=0 to build for the CPU alone"
            )
        os.environ["PYTORCH_ROCM_ARCH"] = os.environ.get("PYTORCH_ROCM_ARCH") or ROCM_ARCHITECTURES
        return True
    if torch.version.cuda is None:
        raise SystemExit(
            f"The CUDA operators need a torch built with CUDA, but torch {torch.__version__} is "
            "not: install one, or set DETLITE_CUDA=0 to build for the CPU alone"
        )
    # torch reads these two when it imports cpp_extension and when it builds.
    os.environ["CUDA_HOME"] = str(find_cuda())
    os.environ["TORCH_CUDA_ARCH_LIST"] = (
        os.environ.get("TORCH_CUDA_ARCH_LIST") or CUDA_ARCHITECTURES
    )
    return True


def find_cuda() -> Path:
    """Return the folder of the CUDA toolkit to build with."""
    home = os.environ.get("CUDA_HOME", "")
    if not home:
        nvcc = shutil.which("nvcc")
        home = toolkit_folder(nvcc) if nvcc else "/usr/local/cuda"
    toolkit = Path(home)
    if not (toolkit / "bin" / "nvcc").exists():
        raise SystemExit(
            f"No CUDA compiler at {toolkit}/bin/nvcc: set CUDA_HOME to the toolkit's folder, "
            "or DETLITE_CUDA=0 to build for the CPU alone"
        )
    return toolkit


def toolkit_folder(nvcc: str) -> str:
    """Return the toolkit folder of an nvcc, which may be a script that calls the real one."""
    dry_run = subprocess.run(
        [nvcc, "--dryrun", "-x", "cu", os.devnull], capture_output=True, text=True
    )
    here = re.search(r"^#\$ _HERE_=(.+)$", dry_run.stderr, re.MULTILINE)
    return os.path.dirname(here[1] if here else os.path.dirname(os.path.realpath(nvcc)))


def cxx_flags(headers: list[str]) -> list[str]:
    """Return the options of the C++ compiler, with torch's folders of header files."""
    # Torch's headers cause warnings; as system headers they do not.
    if WINDOWS:
        paths = [f"/clang:{flag}" for flag in prefix_maps(headers)]
        return [*CLANG_CL_FLAGS, *paths, *[f"/imsvc{path}" for path in headers]]
    return [*CXX_FLAGS, *prefix_maps(headers), *system_headers(headers)]


def gpu_flags(headers: list[str], hip: bool) -> list[str]:
    """Return the options of nvcc or hipcc."""
    if hip:
        return [*HIPCC_FLAGS, *prefix_maps(headers), *system_headers(headers)]
    maps = [f"-Xcompiler={flag}" for flag in prefix_maps(headers)]
    return [*NVCC_FLAGS, *maps, *system_headers(headers)]


def prefix_maps(headers: list[str]) -> list[str]:
    """Return options that keep the building machine's paths out of the binary's error messages."""
    return [f"-ffile-prefix-map={path}/=" for path in (ROOT, *headers)]


def system_headers(headers: list[str]) -> list[str]:
    return [word for path in headers for word in ("-isystem", path)]


def use_clang_cl(build: Any, clang_cl: str) -> None:
    """Make a setuptools build compile with clang-cl, and link by MSVC's linker."""
    compiler = build.compiler
    compiler.initialize()
    compiler.cc = clang_cl
    # The library of __builtin_cpu_supports, which only Clang's own linking adds.
    command = [str(Path(clang_cl).with_name("clang")), "--rtlib=compiler-rt"]
    printed = subprocess.run(
        [*command, "--print-libgcc-file-name"], capture_output=True, text=True, check=True
    )
    for extension in build.extensions:
        extension.extra_link_args = [*extension.extra_link_args, printed.stdout.strip()]


class BuildPackage(build_py):
    """Add the configs to the package, where an installed `detlite` finds them by name."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "detlite" / "configs"
            shutil.copytree(ROOT / "configs", target, dirs_exist_ok=True)


class BuildKernels(build_ext):
    """Compile the operators by torch's compiler driver.

    Torch is imported only here, so that reading the metadata does not need it.
    """

    def run(self) -> None:
        compiler = find_compiler()
        if compiler is None:
            raise SystemExit(f"Cannot compile the operators of detlite: {NO_COMPILER}")
        oldest = ".".join(map(str, OLDEST_TORCH))
        try:
            import torch
        except ImportError as error:
            raise SystemExit(
                f"Cannot compile the operators of detlite: torch >= {oldest} could not be "
                f"imported ({error}). Install it, or leave out --no-build-isolation."
            ) from error
        if tuple(int(part) for part in torch.__version__.split(".")[:2]) < OLDEST_TORCH:
            raise SystemExit(f"detlite needs torch >= {oldest}: this is torch {torch.__version__}")
        gpu = prepare_gpu(torch)
        from torch.utils import cpp_extension

        (declared,) = self.distribution.ext_modules
        make_extension = cpp_extension.CUDAExtension if gpu else cpp_extension.CppExtension
        # As two words, because torch turns -DUSE_CUDA into -DUSE_HIP for ROCm.
        defines = [*DEFINES, "-D", "USE_CUDA"] if gpu else DEFINES
        headers = cpp_extension.include_paths()
        extension = make_extension(
            declared.name,
            declared.sources + (sources("csrc/cuda") if gpu else []),
            depends=declared.depends,
            py_limited_api=True,
            include_dirs=[str(ROOT / "csrc")],
            extra_compile_args={
                "cxx": [*cxx_flags(headers), *defines],
                "nvcc": [*gpu_flags(headers, bool(torch.version.hip)), *defines],
            },
            extra_link_args=LINK_FLAGS,
        )

        class Build(cpp_extension.BuildExtension):
            def build_extensions(self) -> None:
                if WINDOWS:
                    use_clang_cl(self, compiler)
                super().build_extensions()

        # On Windows, torch calls MSVC by name if it builds with ninja.
        ninja = not WINDOWS and cpp_extension.is_ninja_available()
        build = Build(self.distribution, use_ninja=ninja)
        build.inplace, build.editable_mode = self.inplace, self.editable_mode
        build.build_lib, build.build_temp = self.build_lib, self.build_temp
        build.force, build.debug, build.verbose = self.force, self.debug, self.verbose
        self.distribution.ext_modules = [extension]
        try:
            build.ensure_finalized()
            build.run()
        finally:
            self.distribution.ext_modules = [declared]


def options() -> dict[str, Any]:
    """Return the arguments of setup()."""
    if not with_kernels():
        return {"cmdclass": {"build_py": BuildPackage}}
    extension = Extension(
        "detlite._C",
        sources("csrc", "csrc/cpu", "csrc/cpu/simd"),
        depends=sorted(str(path.relative_to(ROOT)) for path in (ROOT / "csrc").rglob("*.h")),
        py_limited_api=True,
    )
    return {
        "ext_modules": [extension],
        "cmdclass": {"build_ext": BuildKernels, "build_py": BuildPackage},
        "options": {"bdist_wheel": {"py_limited_api": "cp310"}},
        # A build frontend asks for the requirements by this command. They are not in
        # pyproject.toml, because a pure-Python build does not need them.
        "setup_requires": ["torch>=2.11", "ninja"] if "egg_info" in sys.argv else [],
    }


setup(**options())
