"""Test the description of the machine and the detection of problems."""

import re
from types import SimpleNamespace

import pytest
import torch

from detlite.apps.cli.main import main
from detlite.apps.doctor import machine
from detlite.apps.doctor.machine import find_problems, system_info


@pytest.fixture
def good_machine(monkeypatch):
    """Simulate a machine without problems: two cores, no GPU, no driver."""
    monkeypatch.setattr(machine, "usable_cores", lambda: 2)
    monkeypatch.setattr(machine, "_driver", lambda: False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: SimpleNamespace(total=8e9))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(machine, "_LOAD_SECONDS", 0)
    monkeypatch.setattr(machine.OtherPrograms, "problem", lambda *_: "")


@pytest.mark.usefixtures("good_machine")
def test_no_problems():
    assert find_problems() == []


@pytest.mark.usefixtures("good_machine")
@pytest.mark.parametrize(
    ("patches", "message"),
    [
        (
            {"cores": 1, "OMP_NUM_THREADS": "2"},
            "torch uses 2 threads on 1 core, because OMP_NUM_THREADS is 2: set it to 1",
        ),
        ({"cores": 16, "OMP_NUM_THREADS": "2"}, "2 threads on 16 cores, .*: set it to 16"),
        ({"others": "other programs use 2.0 of 2 cores"}, "other programs use 2.0 of 2 cores"),
        ({"shared": 64e6}, "/dev/shm, .* has only 64 MB: .*NUM_WORKERS 0"),
        ({"driver": True, "cuda": None}, "this torch is built for the CPU: install a torch with"),
        ({"driver": True, "cuda": "13.2"}, "torch sees no GPU: the driver may be older than CUDA"),
        ({"gpu": None}, "the kernels were built for the CPU only, .*: set CUDA_HOME to a CUDA"),
        ({"gpu": "7.0"}, "the kernels were built for the CPU only, .*: set ROCM_HOME to a ROCm"),
    ],
)
def test_problems(patches, message, monkeypatch):
    if "cores" in patches:
        monkeypatch.setattr(machine, "usable_cores", lambda: patches["cores"])
    if "others" in patches:
        monkeypatch.setattr(machine.OtherPrograms, "problem", lambda *_: patches["others"])
    if "shared" in patches:
        usage = SimpleNamespace(total=patches["shared"])
        monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: usage)
    if "driver" in patches:
        monkeypatch.setattr(machine, "_driver", lambda: True)
        monkeypatch.setattr(torch.version, "cuda", patches["cuda"])
    if "gpu" in patches:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(machine, "has_kernels", lambda _: False)
        monkeypatch.setattr(torch.version, "hip", patches["gpu"])
    if "OMP_NUM_THREADS" in patches:
        monkeypatch.setenv("OMP_NUM_THREADS", patches["OMP_NUM_THREADS"])
    (problem,) = find_problems()
    assert re.search(message, problem)


def test_system_info():
    info = system_info()
    assert torch.__version__ in info["torch"]
    assert "_C." in info["kernels"]
    cores = r"(, 1 core|, \d+ cores), (1 thread|\d+ threads); multiplies float32"
    assert re.search(cores, info["CPU"])
    assert "; DTYPE auto is " in info["CPU"]


@pytest.mark.parametrize(
    ("accelerator", "devices", "gpu"),
    [
        (None, ["cpu"], "none that torch sees"),
        (torch.device("mps"), ["cpu", "mps"], "mps, without kernels (docs/devices.md)"),
    ],
)
def test_devices(accelerator, devices, gpu, monkeypatch):
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda check_available: accelerator
    )
    assert machine.devices() == devices
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert system_info()["GPU"] == gpu


def test_memory_of_a_container(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "Path", lambda _: tmp_path / "memory.max")
    total = machine._memory_bytes()
    for text, expected in (("max\n", total), ("4000000\n", 4_000_000), ("9" * 18, total)):
        (tmp_path / "memory.max").write_text(text)
        assert machine._memory_bytes() == expected


@pytest.mark.usefixtures("good_machine")
def test_command(capsys, monkeypatch):
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert "  padded_nms             correct\n" in printed
    assert printed.endswith("no problems found\n")
    monkeypatch.setattr(
        "detlite.apps.doctor.operator_checks.operator_errors", lambda _: {"nms": "is off"}
    )
    assert main(["doctor"]) == 1
    assert "problem: 1 operators are wrong: rebuild detlite" in capsys.readouterr().out


def test_resources(monkeypatch):
    resources = machine.resources()
    assert resources.cores >= 1
    assert resources.memory > 100e6
    assert resources.dtype in ("float32", "bfloat16")
    assert bool(resources.gpu) is bool(resources.gpu_memory)
    monkeypatch.setattr(machine, "_version", lambda name: "" if name == "timm" else "1")
    assert not machine.resources().pretrained
    monkeypatch.setattr(machine, "_version", lambda name: "1")
    assert machine.resources().pretrained
