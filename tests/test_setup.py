"""What setup.py builds, and for which torch."""

from __future__ import annotations

import runpy
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
    for name in ("CUDA_HOME", "DETLITE_CUDA"):
        monkeypatch.delenv(name, raising=False)

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


def test_macos_has_another_linker(build):
    assert build("darwin")["extra_link_args"] == []


def test_rocm_has_the_kernels_of_the_cpu_alone(build, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.version, "cuda", None)
    made = build()
    assert made["kind"] == "cpu"
    assert "-DUSE_CUDA" not in made["extra_compile_args"]["cxx"]
    monkeypatch.setenv("DETLITE_CUDA", "0")
    monkeypatch.setenv("CUDA_HOME", "/usr/local/cuda")
    assert build()["kind"] == "cpu"


@pytest.mark.parametrize("asked", [{"DETLITE_CUDA": "1"}, {"CUDA_HOME": "/opt/rocm"}])
def test_rocm_refuses_the_kernels_of_cuda(build, monkeypatch, asked):
    monkeypatch.setattr(torch.version, "hip", "7.0")
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match=r"built for ROCm 7\.0.*set DETLITE_CUDA=0, and the"):
        build()
