"""Number of cores and threads, and the load by other programs."""

import os
import subprocess
import sys

import pytest
import torch

from detlite import threads
from detlite.threads import OtherPrograms, limit_threads, usable_cores, wait_passively


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
    monkeypatch.setenv("GOMP_SPINCOUNT", "99")
    wait_passively()
    assert "OMP_WAIT_POLICY" not in os.environ
    monkeypatch.delenv("GOMP_SPINCOUNT")
    wait_passively()
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    monkeypatch.delenv("OMP_WAIT_POLICY")


POLICY_WHEN_TORCH_IS_IMPORTED = """
import os, sys, detlite
class Finder:
    def find_spec(self, name, *_):
        if name == "torch":
            sys.exit(print(os.environ["OMP_WAIT_POLICY"]))
print("OMP_WAIT_POLICY" in os.environ)
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize(
    "use", ["detlite.train", "from detlite.apps.cli.main import main; main(['doctor'])"]
)
def test_the_policy_is_set_before_torch_is_imported(use):
    environment = {k: v for k, v in os.environ.items() if k not in threads._WAIT_VARIABLES}
    command = [sys.executable, "-c", POLICY_WHEN_TORCH_IS_IMPORTED + use]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert printed.stdout.split() == ["False", "PASSIVE"]


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
    ("cores", "busy", "processes", "expected"),
    [(1, 0.0, 1, 1), (4, 0.4, 1, 4), (4, 0.6, 1, 3), (4, 9.0, 1, 1), (4, 3.0, 2, 2), (4, 0, 9, 1)],
)
def test_torch_uses_idle_cores(monkeypatch, caplog, cores, busy, processes, expected):
    used = [8]
    monkeypatch.setattr(torch, "get_num_threads", lambda: used[-1])
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    monkeypatch.setattr(threads, "_limited", (0, 0))
    monkeypatch.setattr(threads, "usable_cores", lambda: cores)
    monkeypatch.setattr(threads, "_SAMPLE_SECONDS", 0)
    monkeypatch.setattr(OtherPrograms, "cores", lambda _: busy)
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    limit_threads(processes)
    assert used == [8]
    monkeypatch.delenv("OMP_NUM_THREADS")
    limit_threads(processes)
    assert used[-1] == expected
    said = f"use {busy:.1f} of 4 cores: torch uses {expected} of its 8 threads"
    assert (said in caplog.text) == (processes == 1 and busy > 0.5)
    monkeypatch.setattr(OtherPrograms, "cores", lambda _: 0.0)
    limit_threads()  # the machine is quiet again
    assert used[-1] == cores


def test_load_by_other_programs(linux, monkeypatch):
    ticks = os.sysconf("SC_CLK_TCK")
    now, own = 0.0, 0.0
    monkeypatch.setattr(threads.time, "monotonic", lambda: now)
    monkeypatch.setattr(threads.time, "process_time", lambda: own)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)

    def write(busy: float) -> None:
        """Write the seconds for which core 1 was busy; core 7 is not usable."""
        row = f"{int(busy * ticks)} 0 0 900 9 0 0 0 0 0"
        linux("proc/stat", f"cpu 1 1 1 1 1 1 1 1 1 1\ncpu1 {row}\ncpu7 {row}\nintr 5\n")

    write(100.0)
    others = OtherPrograms()
    now, own = 10.0, 8.0
    write(118.0)  # this process used 8 of these 18 seconds
    assert others.cores() == pytest.approx(1.0)
    now = 20.0
    write(138.0)
    problem = others.problem("training")
    assert "other programs use 2.0 of 4 cores, so training is slow: stop them, or" in problem
    assert problem.endswith("OMP_NUM_THREADS=2")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    now = 30.0
    write(158.0)
    assert others.problem("training") == ""  # two cores are enough for two threads
