"""Number of cores and threads, and the load by other programs."""

import os
import subprocess
import sys

import pytest
import torch

from detlite import threads
from detlite.threads import configure_cpu_libraries, limit_threads, usable_cores

CACHE_CAPACITY = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"


@pytest.fixture
def linux(monkeypatch, tmp_path):
    """Return a function that writes files below a simulated /proc and /sys/fs/cgroup."""
    monkeypatch.setattr(threads, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(threads, "_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(threads, "_affinity", lambda: {0, 1, 2, 3})

    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    return write


def test_threads_wait_passively_unless_the_user_decides(monkeypatch):
    for name in threads._WAIT_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(CACHE_CAPACITY, "7")
    monkeypatch.setenv("GOMP_SPINCOUNT", "99")
    configure_cpu_libraries()
    assert "OMP_WAIT_POLICY" not in os.environ
    monkeypatch.delenv("GOMP_SPINCOUNT")
    configure_cpu_libraries()
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    assert os.environ[CACHE_CAPACITY] == "7"
    monkeypatch.delenv("OMP_WAIT_POLICY")


ENVIRONMENT_WHEN_TORCH_IS_IMPORTED = """
import os, sys, detlite
class Finder:
    def find_spec(self, name, *_):
        if name == "torch":
            print(os.environ["OMP_WAIT_POLICY"], os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"])
            sys.exit()
print("OMP_WAIT_POLICY" in os.environ)
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize(
    "use", ["detlite.train", "from detlite.apps.cli.main import main; main(['doctor'])"]
)
def test_the_environment_is_set_before_torch_is_imported(use):
    names = (*threads._WAIT_VARIABLES, CACHE_CAPACITY)
    environment = {k: v for k, v in os.environ.items() if k not in names}
    command = [sys.executable, "-c", ENVIRONMENT_WHEN_TORCH_IS_IMPORTED + use]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert printed.stdout.split() == ["False", "PASSIVE", "16384"]


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 4),
        ({"proc/self/cgroup": "0::/", "cgroup/cpu.max": "max 100000"}, 4),
        ({"proc/self/cgroup": "0::/", "cgroup/cpu.max": "250000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/", "cgroup/cpu.max": "50000 100000"}, 1),
        ({"proc/self/cgroup": "0::/a/b\n", "cgroup/a/cpu.max": "300000 100000"}, 3),
        (
            {
                "proc/self/cgroup": "5:cpuset:/x\n4:cpu,cpuacct:/job\n0::/",
                "cgroup/cpu/job/cpu.cfs_quota_us": "200000\n",
                "cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
                "cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            2,
        ),
    ],
)
def test_usable_cores(linux, files, cores):
    for name, text in files.items():
        linux(name, text)
    assert usable_cores() == cores


@pytest.mark.parametrize(
    ("cores", "processes", "expected"), [(1, 1, 1), (4, 1, 4), (4, 2, 2), (4, 9, 1), (16, 1, 8)]
)
def test_torch_uses_the_usable_cores(monkeypatch, cores, processes, expected):
    used = [8]
    monkeypatch.setattr(torch, "get_num_threads", lambda: used[-1])
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    monkeypatch.setattr(threads, "usable_cores", lambda: cores)
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    limit_threads(processes)
    assert used == [8]
    monkeypatch.delenv("OMP_NUM_THREADS")
    limit_threads(processes)
    assert used[-1] == expected
