"""Tests of setup.py: its build on each platform, and its errors."""

import os
import runpy
import shutil
import subprocess
import sys
import zipfile
from functools import partial
from typing import Any

import pytest
import setuptools
import torch
from setuptools.dist import Distribution


@pytest.fixture
def load_setup(repo_root, monkeypatch):
    """`load_setup(platform)`: the names of setup.py, which builds nothing."""
    monkeypatch.chdir(repo_root)
    for name in ("CUDA_HOME", "ROCM_HOME", "ROCM_PATH", "DETLITE_CUDA", "DETLITE_KERNELS", "CXX"):
        monkeypatch.delenv(name, raising=False)
    for name in ("CUDA_HOME", "TORCH_CUDA_ARCH_LIST", "PYTORCH_ROCM_ARCH"):  # set by setup.py
        monkeypatch.setenv(name, "")

    def load(platform: str = "linux") -> dict[str, Any]:
        with monkeypatch.context() as patch:
            patch.setattr(setuptools, "setup", lambda **options: None)
            patch.setattr(sys, "platform", platform)
            return runpy.run_path("setup.py")

    return load


@pytest.fixture
def build(load_setup, monkeypatch):
    """`build(platform)`: the arguments of torch's CppExtension or CUDAExtension."""

    def run(platform: str = "linux") -> dict[str, Any]:
        arguments: dict[str, Any] = {}
        module = load_setup(platform)
        from torch.utils import cpp_extension

        def record(kind: str, name: str, sources: list[str], **options: Any) -> Any:
            arguments.update(kind=kind, sources=sources, **options)
            return setuptools.Extension(name, sources)

        class Build(cpp_extension.BuildExtension):
            def run(self) -> None:
                arguments.update(use_ninja=self.use_ninja)

        with monkeypatch.context() as patch:
            patch.setattr(shutil, "which", lambda name, **options: f"/bin/{name}")
            patch.setattr(cpp_extension, "CppExtension", partial(record, "cpu"))
            patch.setattr(cpp_extension, "CUDAExtension", partial(record, "cuda"))
            patch.setattr(cpp_extension, "BuildExtension", Build)
            declared = module["options"]()["ext_modules"]
            distribution = Distribution({"name": "detlite", "ext_modules": declared})
            command = module["BuildKernels"](distribution)
            command.ensure_finalized()
            command.run()
        return arguments

    return run


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_cpu_build(build, platform):
    arguments = build(platform)
    assert arguments["kind"] == "cpu"
    assert {"csrc/cpu/nms.cpp", "csrc/cpu/roi_align.cpp"} <= {*arguments["sources"]}
    assert not [source for source in arguments["sources"] if source.endswith(".cu")]
    linking = ["-Wl,-O1", "-Wl,--as-needed"] if platform == "linux" else []
    assert arguments["extra_link_args"] == linking
    if platform == "win32":
        flags = arguments["extra_compile_args"]["cxx"]
        assert not arguments["use_ninja"]
        assert {"/std:c++17", "/clang:-ffp-contract=off"} <= set(flags)
        assert all(flag.startswith(("/", "-D")) for flag in flags)


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_only_warnings_in_own_code_are_reported(build, monkeypatch, tmp_path):
    from torch.utils import cpp_extension

    headers = tmp_path / "include"
    headers.mkdir()
    (headers / "torchs.h").write_text("inline int unused(int value) { return 0; }\n")
    monkeypatch.setattr(cpp_extension, "include_paths", lambda *options: [str(headers)])
    flags = [f"-I{headers}", *build()["extra_compile_args"]["cxx"], "-Werror", "-fsyntax-only"]

    def compile_text(text: str) -> subprocess.CompletedProcess[str]:
        command = ["c++", *flags, "-x", "c++", "-"]
        return subprocess.run(command, input=text, capture_output=True, text=True)

    assert compile_text("#include <torchs.h>\n").stderr == ""
    assert "unused parameter" in compile_text("int own(int value) { return 0; }\n").stderr


def test_windows_compiles_with_clang_cl(load_setup, monkeypatch):
    module = load_setup("win32")
    monkeypatch.setattr(
        subprocess, "run", lambda command, **options: subprocess.CompletedProcess(command, 0, "a\n")
    )

    class Compiler:
        cc = ""

        def initialize(self):
            self.cc = "cl"

    class Build:
        compiler = Compiler()
        extensions = (setuptools.Extension("a", []),)

    module["use_clang_cl"](Build, "C:/LLVM/clang-cl")
    assert Build.compiler.cc == "C:/LLVM/clang-cl"
    assert Build.extensions[0].extra_link_args == ["a"]


@pytest.fixture
def toolkit(tmp_path):
    """A folder with the compilers of CUDA and ROCm."""
    (tmp_path / "bin").mkdir()
    for name in ("nvcc", "hipcc"):
        (tmp_path / "bin" / name).touch()
    return str(tmp_path)


def test_cuda_build_on_request(build, monkeypatch, toolkit):
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setenv("CUDA_HOME", toolkit)
    arguments = build()
    assert arguments["kind"] == "cuda"
    assert "csrc/cuda/nms.cu" in arguments["sources"]
    flags = arguments["extra_compile_args"]["nvcc"]
    assert flags[flags.index("-D") + 1] == "USE_CUDA"
    assert os.environ["TORCH_CUDA_ARCH_LIST"] == "7.5;8.0;9.0+PTX"


@pytest.fixture
def rocm(monkeypatch, toolkit):
    """A torch for AMD's GPUs with its toolkit."""
    from torch.utils import cpp_extension

    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(cpp_extension, "ROCM_HOME", toolkit)


@pytest.mark.usefixtures("rocm")
def test_rocm_build_on_request(build, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", "/usr/local/cuda")
    arguments = build()
    assert arguments["kind"] == "cpu"
    assert "USE_CUDA" not in arguments["extra_compile_args"]["cxx"]
    monkeypatch.setenv("ROCM_HOME", "/opt/rocm")
    arguments = build()
    assert arguments["kind"] == "cuda"
    assert "csrc/cuda/nms.cu" in arguments["sources"]
    flags = arguments["extra_compile_args"]["nvcc"]
    assert flags[flags.index("-D") + 1] == "USE_CUDA"
    assert os.environ["PYTORCH_ROCM_ARCH"] == "gfx90a;gfx942;gfx1030;gfx1100"
    assert "-ffp-contract=off" in flags
    assert not [flag for flag in flags if "-Xcompiler" in flag or flag == "-DUSE_CUDA"]
    monkeypatch.setenv("DETLITE_CUDA", "0")
    assert build()["kind"] == "cpu"


@pytest.mark.parametrize(
    ("platform", "hip", "value", "message"),
    [
        ("linux", None, "2", "must be 0 or 1: got '2'"),
        ("linux", None, "1", "need a torch built with CUDA"),
        ("win32", None, "1", "DETLITE_CUDA=1 is not supported on Windows"),
        ("linux", "7.0", "1", "No ROCm compiler at /nowhere/bin/hipcc: set ROCM_HOME"),
    ],
)
def test_impossible_gpu_requests(build, monkeypatch, platform, hip, value, message):
    from torch.utils import cpp_extension

    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(cpp_extension, "ROCM_HOME", "/nowhere")
    monkeypatch.setenv("DETLITE_CUDA", value)
    with pytest.raises(SystemExit, match=message):
        build(platform)


def test_a_missing_cuda_toolkit_is_named(build, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    with pytest.raises(SystemExit, match="No CUDA compiler at /nowhere/bin/nvcc: set CUDA_HOME"):
        build()


@pytest.fixture
def no_compiler(tmp_path):
    """Environment variables that hide every compiler."""
    variables = {key: value for key, value in os.environ.items() if key not in ("CC", "CXX")}
    return variables | {"PATH": str(tmp_path / "empty")}


def run_setup(*arguments: str, cwd, env) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "setup.py", "--quiet", *arguments],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
    )


def test_missing_compiler(repo_root, tmp_path, no_compiler):
    folders = ("--build-lib", str(tmp_path), "--build-temp", str(tmp_path))
    environment = no_compiler | {"DETLITE_KERNELS": "1"}
    done = run_setup("build_ext", *folders, cwd=repo_root, env=environment)
    assert done.returncode == 1
    message = "Cannot compile the operators of detlite: there is no C++ compiler 'c++'. Install "
    assert message in done.stderr


def test_pure_python_wheel_needs_no_compiler(repo_root, tmp_path, no_compiler):
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    for name in ("detlite", "configs", "csrc"):
        shutil.copytree(repo_root / name, tmp_path / name, ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(repo_root / name, tmp_path)
    done = run_setup("bdist_wheel", cwd=tmp_path, env=no_compiler)
    assert done.returncode == 0, done.stderr
    assert "detlite is built without compiled operators: there is no C++" in done.stderr
    (wheel,) = (tmp_path / "dist").iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")
    check = runpy.run_path(str(repo_root / "tests" / "wheel" / "check.py"))
    assert check["contents"](wheel, tmp_path) == []
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.startswith(("csrc", "tests"))]


def test_kernels_are_0_or_1(load_setup, monkeypatch):
    options = load_setup()["options"]
    assert [extension.name for extension in options()["ext_modules"]] == ["detlite._C"]
    monkeypatch.setenv("DETLITE_KERNELS", "0")
    assert "ext_modules" not in options()
    monkeypatch.setenv("DETLITE_KERNELS", "no")
    with pytest.raises(SystemExit, match="DETLITE_KERNELS must be 0 or 1: got 'no'"):
        options()


def test_only_a_compiled_build_requires_torch(load_setup, monkeypatch):
    options = load_setup()["options"]
    monkeypatch.setattr(sys, "argv", ["setup.py", "egg_info"])
    assert options()["setup_requires"] == ["torch>=2.11", "ninja"]
    monkeypatch.setenv("DETLITE_KERNELS", "0")
    assert "setup_requires" not in options()
