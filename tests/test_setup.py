"""What setup.py builds, and for which torch."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from typing import Any

import pytest
import setuptools
import torch
from setuptools.dist import Distribution


@pytest.fixture
def build(repo_root, monkeypatch):
    """`build(platform)`: what is handed to torch's CppExtension and CUDAExtension."""
    monkeypatch.chdir(repo_root)
    monkeypatch.setattr(setuptools, "setup", lambda **options: None)
    for name in ("CUDA_HOME", "ROCM_HOME", "ROCM_PATH", "DETLITE_CUDA"):
        monkeypatch.delenv(name, raising=False)
    for name in ("CUDA_HOME", "TORCH_CUDA_ARCH_LIST", "PYTORCH_ROCM_ARCH"):  # which setup.py sets
        monkeypatch.setenv(name, "")

    def run(platform: str = "linux") -> dict[str, Any]:
        made: dict[str, Any] = {}
        with monkeypatch.context() as patch:
            patch.setattr(sys, "platform", platform)
            module = runpy.run_path("setup.py")
        from torch.utils import cpp_extension

        def noted(kind: str) -> Any:
            def make(name: str, sources: list[str], **options: Any) -> setuptools.Extension:
                made.update(kind=kind, sources=sources, **options)
                return setuptools.Extension(name, sources)

            return make

        class Build(cpp_extension.BuildExtension):
            def run(self) -> None:
                pass

        with monkeypatch.context() as patch:
            patch.setattr(cpp_extension, "CppExtension", noted("cpu"))
            patch.setattr(cpp_extension, "CUDAExtension", noted("cuda"))
            patch.setattr(cpp_extension, "BuildExtension", Build)
            extension = setuptools.Extension("detlite._C", module["sources"]("csrc", "csrc/cpu"))
            distribution = Distribution({"name": "detlite", "ext_modules": [extension]})
            command = module["BuildKernels"](distribution)
            command.ensure_finalized()
            command.run()
        return made

    return run


def test_kernels_of_the_cpu(build):
    made = build()
    assert made["kind"] == "cpu"
    assert "csrc/cpu/nms.cpp" in made["sources"]
    assert not [source for source in made["sources"] if source.endswith(".cu")]
    assert made["extra_link_args"] == ["-Wl,-O1", "-Wl,--as-needed"]


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_warnings_in_headers_of_torch_are_not_ours(build, monkeypatch, tmp_path):
    from torch.utils import cpp_extension

    headers = tmp_path / "include"
    headers.mkdir()
    (headers / "torchs.h").write_text("inline int unused(int value) { return 0; }\n")
    monkeypatch.setattr(cpp_extension, "include_paths", lambda *of: [str(headers)])
    flags = [f"-I{headers}", *build()["extra_compile_args"]["cxx"], "-Werror", "-fsyntax-only"]

    def compiled(text: str) -> subprocess.CompletedProcess[str]:
        command = ["c++", *flags, "-x", "c++", "-"]
        return subprocess.run(command, input=text, capture_output=True, text=True)

    assert compiled("#include <torchs.h>\n").stderr == ""
    assert "unused parameter" in compiled("int own(int value) { return 0; }\n").stderr


def test_macos_has_another_linker(build):
    assert build("darwin")["extra_link_args"] == []


@pytest.fixture
def toolkit(tmp_path):
    """A folder with the compilers of CUDA and ROCm."""
    (tmp_path / "bin").mkdir()
    for name in ("nvcc", "hipcc"):
        (tmp_path / "bin" / name).touch()
    return str(tmp_path)


def test_cuda_has_kernels_where_they_are_asked_for(build, monkeypatch, toolkit):
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setenv("CUDA_HOME", toolkit)
    made = build()
    assert made["kind"] == "cuda"
    assert "csrc/cuda/nms.cu" in made["sources"]
    flags = made["extra_compile_args"]["nvcc"]
    assert flags[flags.index("-D") + 1] == "USE_CUDA"
    assert os.environ["TORCH_CUDA_ARCH_LIST"] == "7.5;8.0;9.0+PTX"
    monkeypatch.setenv("CUDA_HOME", f"{toolkit}/bin")
    with pytest.raises(SystemExit, match=r"no CUDA compiler at .*/bin/bin/nvcc: set CUDA_HOME"):
        build()


@pytest.fixture
def rocm(monkeypatch, toolkit):
    """A torch for AMD's GPUs, and its toolkit."""
    from torch.utils import cpp_extension

    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(cpp_extension, "ROCM_HOME", toolkit)


@pytest.mark.usefixtures("rocm")
def test_rocm_has_kernels_where_they_are_asked_for(build, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", "/usr/local/cuda")
    made = build()
    assert made["kind"] == "cpu"
    assert "USE_CUDA" not in made["extra_compile_args"]["cxx"]
    monkeypatch.setenv("ROCM_HOME", "/opt/rocm")
    made = build()
    assert made["kind"] == "cuda"
    assert "csrc/cuda/nms.cu" in made["sources"]
    flags = made["extra_compile_args"]["nvcc"]
    assert flags[flags.index("-D") + 1] == "USE_CUDA"
    assert os.environ["PYTORCH_ROCM_ARCH"] == "gfx90a;gfx942;gfx1030;gfx1100"
    assert "-ffp-contract=off" in flags
    assert not [flag for flag in flags if "-Xcompiler" in flag or flag == "-DUSE_CUDA"]
    monkeypatch.setenv("DETLITE_CUDA", "0")
    assert build()["kind"] == "cpu"


@pytest.mark.usefixtures("rocm")
def test_rocm_needs_its_toolkit(build, monkeypatch):
    from torch.utils import cpp_extension

    monkeypatch.setattr(cpp_extension, "ROCM_HOME", "/nowhere")
    monkeypatch.setenv("DETLITE_CUDA", "1")
    with pytest.raises(SystemExit, match="no ROCm compiler at /nowhere/bin/hipcc: set ROCM_HOME"):
        build()


@pytest.mark.parametrize(
    ("value", "said"), [("2", "must be 0 or 1, not '2'"), ("1", "CUDA kernels need a torch built")]
)
def test_what_cannot_be_built_is_told(build, monkeypatch, value, said):
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setenv("DETLITE_CUDA", value)
    with pytest.raises(SystemExit, match=said):
        build()
