"""What the doctor says of a machine."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
import torch

from detlite.apps.cli.main import main
from detlite.apps.doctor import facts, machine, problems


@pytest.fixture
def sound(monkeypatch):
    """A machine with nothing wrong: two cores, no GPU, no driver."""
    monkeypatch.setattr(machine, "_cores", lambda: 2)
    monkeypatch.setattr(machine, "_driver", lambda: False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: SimpleNamespace(total=8e9))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.mark.usefixtures("sound")
def test_nothing_is_wrong():
    assert problems() == []


@pytest.mark.usefixtures("sound")
@pytest.mark.parametrize(
    ("patches", "said"),
    [
        ({"cores": 1}, "torch uses 2 threads on 1 core that .*: set OMP_NUM_THREADS=1"),
        ({"cores": 16, "OMP_NUM_THREADS": "2"}, "torch uses 2 of 16 cores: OMP_NUM_THREADS is 2"),
        ({"shared": 64e6}, "/dev/shm holds 64 MB, .*NUM_WORKERS 0"),
        ({"driver": True, "cuda": None}, "this torch is built for the CPU: install one with CUDA"),
        ({"driver": True, "cuda": "13.2"}, "torch sees no GPU: the driver may be older than CUDA"),
        ({"gpu": None}, "the kernels were built for the CPU alone, .*: set CUDA_HOME to a CUDA"),
        ({"gpu": "7.0"}, "the kernels were built for the CPU alone, .*: set ROCM_HOME to a ROCm"),
    ],
)
def test_what_is_wrong(patches, said, monkeypatch):
    if "cores" in patches:
        monkeypatch.setattr(machine, "_cores", lambda: patches["cores"])
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
    (found,) = problems()

    assert re.search(said, found)


def test_facts_of_this_machine():
    found = facts()
    assert torch.__version__ in found["torch"]
    assert "_C." in found["kernels"]
    assert re.search(
        r"(, 1 core|, \d+ cores), (1 thread|\d+ threads); multiplies float32", found["CPU"]
    )
    assert "; DTYPE auto is " in found["CPU"]


@pytest.mark.parametrize(
    ("there", "wanted"), [(None, ["cpu"]), (torch.device("mps"), ["cpu", "mps"])]
)
def test_every_device_that_torch_has_is_looked_at(there, wanted, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: there)
    assert machine.devices() == wanted
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert facts()["GPU"] == (
        "mps, in plain torch (docs/devices.md)" if there else "none that torch sees"
    )


def test_cores_of_a_container(monkeypatch, tmp_path):
    limit = tmp_path / "cpu.max"
    monkeypatch.setattr(machine, "Path", lambda _: limit)
    everything = machine._cores()
    for text, expected in (("max 100000", everything), ("100000 100000", 1), ("50000 100000", 1)):
        limit.write_text(text)
        assert machine._cores() == expected


@pytest.mark.usefixtures("sound")
def test_command(capsys, monkeypatch):
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert "  padded_nms             right\n" in printed
    assert printed.endswith("nothing is wrong\n")
    monkeypatch.setattr("detlite.apps.cli.doctor.operator_errors", lambda _: {"nms": "is off"})
    assert main(["doctor"]) == 1
    assert "problem: 1 operators are wrong: build detlite anew" in capsys.readouterr().out


def test_resources_are_those_of_this_machine(monkeypatch):
    found = machine.resources()
    assert found.cores >= 1
    assert found.memory > 100e6
    assert found.dtype in ("float32", "bfloat16")
    assert bool(found.gpu) is bool(found.gpu_memory)
    monkeypatch.setattr(machine, "_version", lambda name: "" if name == "timm" else "1")
    assert not machine.resources().pretrained
    monkeypatch.setattr(machine, "_version", lambda name: "1")
    assert machine.resources().pretrained


def test_a_container_may_have_less_memory_than_its_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "Path", lambda _: tmp_path / "memory.max")
    whole = machine._memory_bytes()
    for text, expected in (("max\n", whole), ("4000000\n", 4_000_000), ("9" * 18, whole)):
        (tmp_path / "memory.max").write_text(text)
        assert machine._memory_bytes() == expected
