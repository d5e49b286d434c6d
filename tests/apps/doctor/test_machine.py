"""Test the description of the machine and the detection of problems."""

import re
from types import SimpleNamespace

import pytest
import torch
from torch.utils import collect_env

from detlite.apps.cli.main import main
from detlite.apps.doctor import machine


@pytest.fixture
def good_machine(monkeypatch):
    """Simulate a machine without problems: two cores, no GPU, no driver."""
    monkeypatch.setattr(machine, "usable_cores", lambda: 2)
    monkeypatch.setattr(machine, "_has_driver", lambda: False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: SimpleNamespace(total=8e9))
    monkeypatch.setattr(collect_env, "get_pretty_env_info", lambda: "of torch")  # takes seconds
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.mark.usefixtures("good_machine")
@pytest.mark.parametrize(
    ("patches", "message"),
    [
        (
            {"usable_cores": 1, "OMP_NUM_THREADS": "2"},
            "torch uses 2 threads on 1 core, because OMP_NUM_THREADS is 2: set it to 1",
        ),
        ({"usable_cores": 16, "OMP_NUM_THREADS": "2"}, "2 threads on 16 cores, .*: set it to 16"),
        ({"shared": 64e6}, "/dev/shm, .* has only 64 MB: .*NUM_WORKERS 0"),
        ({"_has_driver": True, "cuda": None}, "this torch is built for the CPU: install a torch"),
        ({"_has_driver": True, "cuda": "13.2"}, "torch sees no GPU: .* be older than CUDA 13.2"),
        ({"hip": None}, "the kernels were built for the CPU only, .*: set CUDA_HOME to a CUDA"),
        ({"hip": "7.0"}, "the kernels were built for the CPU only, .*: set ROCM_HOME to a ROCm"),
    ],
)
def test_problems(patches, message, monkeypatch):
    assert machine.find_problems() == []
    for name, value in patches.items():
        if name == "OMP_NUM_THREADS":
            monkeypatch.setenv(name, value)
        elif name == "shared":
            usage = SimpleNamespace(total=value)
            monkeypatch.setattr(machine.shutil, "disk_usage", lambda _, usage=usage: usage)
        elif name in ("cuda", "hip"):
            monkeypatch.setattr(torch.version, name, value)
        else:
            monkeypatch.setattr(machine, name, lambda value=value: value)
    if "hip" in patches:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(machine, "has_kernels", lambda _: False)
    (problem,) = machine.find_problems()
    assert re.search(message, problem)


def test_memory_of_a_container(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "Path", lambda _: tmp_path / "memory.max")
    total = machine._memory_bytes()
    for text, expected in (("max\n", total), ("4000000\n", 4_000_000), ("9" * 18, total)):
        (tmp_path / "memory.max").write_text(text)
        assert machine._memory_bytes() == expected


@pytest.mark.usefixtures("good_machine")
@pytest.mark.parametrize("accelerator", [None, torch.device("mps")])
def test_command(accelerator, capsys, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: accelerator)
    errors = "detlite.apps.doctor.operator_checks.operator_errors"
    monkeypatch.setattr(errors, lambda device: {"nms": ""})
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^kernels: .*_C\..*\nthreads: 2 on 2 cores\n", printed, re.MULTILINE)
    assert re.search(r"^optional: .*\bopenvino .*\bstarlette ", printed, re.MULTILINE)
    assert re.search(r"^cpu: multiplies float32.*; DTYPE auto is ", printed, re.MULTILINE)
    assert ("operators on mps (fallbacks)" in printed) == (accelerator is not None)
    assert "\nof torch\n" in printed
    assert printed.endswith("no problems found\n")
    monkeypatch.setattr(errors, lambda device: {"nms": "is off"})
    assert main(["doctor"]) == 1
    assert re.search("problem: . operators are wrong: rebuild detlite", capsys.readouterr().out)


def test_resources(monkeypatch):
    resources = machine.resources()
    assert resources.cores >= 1
    assert resources.memory > 100e6
    assert resources.dtype in ("float32", "bfloat16")
    assert bool(resources.gpu) is bool(resources.gpu_memory)
    for missing, expected in (("timm", False), ("", True)):
        monkeypatch.setattr(machine, "_version", lambda name, no=missing: "" if name == no else "1")
        assert machine.resources().pretrained is expected
