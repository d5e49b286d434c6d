"""What an import says of kernels that cannot be loaded."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest
import torch

from detlite.ops import kernels


def test_the_oldest_torch_is_the_one_that_is_built_for_and_asked_for(repo_root):
    oldest = ".".join(map(str, kernels.OLDEST_TORCH))
    project, build = ((repo_root / name).read_text() for name in ("pyproject.toml", "setup.py"))
    assert set(re.findall(r'"torch>=([\d.]+)"', project)) == {oldest}
    assert f"OLDEST_TORCH = {kernels.OLDEST_TORCH}\n" in build


@pytest.mark.parametrize("version", ["2.10.1+cu130", "1.13.0", "2.9.0a0"])
def test_older_torch_is_refused(version, monkeypatch):
    monkeypatch.setattr(torch, "__version__", version)
    assert kernels.refusal() == (
        f"detlite needs torch >= 2.11, and this is torch {version}: "
        "`pip install --upgrade torch torchvision`"
    )


@pytest.mark.parametrize("version", ["2.11.0", "2.11.0+cpu", "2.15.0a0+git12", "3.0.1", "unknown"])
def test_later_torch_is_taken(version, monkeypatch):
    monkeypatch.setattr(torch, "__version__", version)
    assert kernels.refusal() == ""


def test_kernels_for_another_cuda(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.12.0+cu126")
    monkeypatch.setattr(torch.version, "cuda", "12.6")
    error = ImportError("libcudart.so.13: cannot open shared object file: No such file")
    assert kernels.remedy(error) == (
        "detlite's kernels were built for CUDA 13, and torch 2.12.0+cu126 for CUDA 12.6: "
        "install a torch for CUDA 13, or a wheel of detlite for the CPU"
    )
    monkeypatch.setattr(torch.version, "cuda", None)
    error = ImportError("libc10_cuda.so: cannot open shared object file: No such file")
    assert "built for CUDA, and torch 2.12.0+cu126 for the CPU alone: " in kernels.remedy(error)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert "built for CUDA, and torch 2.12.0+cu126 for ROCm 7.0: " in kernels.remedy(error)


@pytest.mark.parametrize("library", ["libamdhip64.so.7", "libtorch_hip.so"])
def test_kernels_for_rocm(library, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    error = ImportError(f"{library}: cannot open shared object file: No such file")
    found = kernels.remedy(error)
    assert found.startswith("detlite's kernels were built for ROCm, and torch ")
    assert found.endswith(
        " for CUDA 13.2: install a torch for ROCm, or a wheel of detlite for the CPU"
    )


def test_kernels_that_are_not_there(monkeypatch, tmp_path):
    monkeypatch.setattr(kernels, "__file__", str(tmp_path / "kernels.py"))
    assert kernels.remedy(ImportError("cannot import name '_C'")).startswith(
        "detlite._C, the compiled kernels, is not built: `pip install --no-build-isolation -e .`"
    )


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2.10.0", "ImportError: detlite needs torch >= 2.11, and this is torch 2.10.0: `pip "),
        ("2.11.0", "ImportError: detlite._C, the compiled kernels, cannot be loaded ("),
    ],
)
def test_import_says_it_in_a_line(version, expected, repo_root, tmp_path):
    """A package whose kernels are no library, beside what has torch's name and a version."""
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(repo_root / "detlite", tmp_path / "detlite", ignore=ignored)
    (tmp_path / "detlite" / "_C.abi3.so").write_bytes(b"no library")
    (tmp_path / "torch.py").write_text(f"__version__ = {version!r}\n")
    done = subprocess.run(
        [sys.executable, "-c", "import detlite"], cwd=tmp_path, text=True, capture_output=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.stderr.splitlines()[-1].startswith(expected), done.stderr
