"""tools/gpu_check.py without a GPU: what it says, and its steps on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

TOOLS = Path(__file__).parents[2] / "tools"


def run(*command: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """A program of tools/, in a process of its own, with this detlite."""
    environment = {**os.environ, "PYTHONPATH": str(TOOLS.parent), **variables}
    return subprocess.run(
        [sys.executable, *map(str, command)], env=environment, capture_output=True, text=True
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_runs_the_rest(tmp_path):
    steps = ("calls", "bad_index", "memcheck", "benchmark", "tests")
    ran = run(TOOLS / "gpu_check.py", "--out", tmp_path, "--only", *steps)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["hardware"]["gpu"].startswith("none")
    verdicts = {step["step"]: step for step in report["steps"]}
    assert verdicts["calls"]["verdict"] == verdicts["bad_index"]["verdict"] == "passed"
    for step in ("memcheck", "benchmark", "tests"):
        assert (verdicts[step]["verdict"], verdicts[step]["detail"]) == ("skipped", "no GPU")
    assert "batch index 7" in (tmp_path / "bad_index.txt").read_text()
    assert "| calls | passed |" in (tmp_path / "report.md").read_text()


def test_a_step_that_fails_is_named_and_ends_with_status_1(tmp_path):
    # A package that cannot be imported.
    (tmp_path / "detlite").mkdir()
    (tmp_path / "detlite" / "__init__.py").write_text("raise ImportError('broken on purpose')\n")
    command = (TOOLS / "gpu_check.py", "--out", tmp_path / "out", "--only", "calls")
    ran = run(*command, PYTHONPATH=str(tmp_path))
    assert ran.returncode == 1
    assert "broken on purpose" in ran.stdout
    (step,) = json.loads((tmp_path / "out" / "report.json").read_text())["steps"]
    assert step["verdict"] == "failed"


# Stands for a machine without these packages.
WITHOUT = """
import importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("yacs", "pycocotools"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name in ("yacs", "pycocotools") else find(name)
"""


def test_operators_need_neither_yacs_nor_pycocotools(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    path = f"{tmp_path}:{TOOLS.parent}"
    ran = run(TOOLS / "gpu_steps.py", "graph", "cpu", PYTHONPATH=path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "roi_align: ok" in ran.stdout
    failed = run("-c", "import detlite", PYTHONPATH=path)
    assert "yacs" in failed.stderr  # as it should be for the test to mean something


def test_the_other_steps_on_the_cpu():
    code = "import gpu_steps as s; print(s.large('cpu', 2000), s.stream('cpu'), s.training('cpu'))"
    ran = run("-c", f"import sys; sys.path.insert(0, {str(TOOLS)!r}); {code}")
    assert ran.stdout.splitlines()[-1:] == ["True True True"], ran.stdout + ran.stderr


def test_benchmarks_run_on_the_cpu(tmp_path):
    file = tmp_path / "rows.json"
    options = ("--device", "cpu", "--small", "--calls", 1, "--json", file)
    ran = run(TOOLS / "gpu_benchmark.py", *options)
    assert ran.returncode == 0, ran.stderr
    rows = json.loads(file.read_text())
    assert {"roi_align_7_s2_backward", "pyramid_16x512_cl_backward"} <= {x["case"] for x in rows}
    assert all(row["detlite_ms"] > 0 for row in rows)
    assert ran.stdout.count("\n| `") == len(rows)
