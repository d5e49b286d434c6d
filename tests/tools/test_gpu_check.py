"""tools/gpu_check.py without a GPU: its report, and its steps on the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

TOOLS = Path(__file__).parents[2] / "tools"


def run(*command: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script of tools/ in a separate process with this detlite."""
    environment = {**os.environ, "PYTHONPATH": str(TOOLS.parent), **variables}
    return subprocess.run(
        [sys.executable, *map(str, command)], env=environment, capture_output=True, text=True
    )


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_steps_that_need_a_gpu_are_skipped_without_one(tmp_path):
    steps = ("calls", "bad_index", "invalid_arguments", "memcheck", "benchmark", "tests")
    result = run(TOOLS / "gpu_check.py", "--out", tmp_path, "--only", *steps)
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["hardware"]["gpu"].startswith("none")
    verdicts = {step["step"]: step for step in report["steps"]}
    for step in ("calls", "bad_index", "invalid_arguments"):
        assert verdicts[step]["verdict"] == "passed"
    for step in ("memcheck", "benchmark", "tests"):
        assert (verdicts[step]["verdict"], verdicts[step]["detail"]) == ("skipped", "no GPU")
    assert "batch index 7" in (tmp_path / "bad_index.txt").read_text()
    assert "| calls | passed |" in (tmp_path / "report.md").read_text()


@pytest.mark.slow
def test_failed_step_is_reported_with_exit_status_1(tmp_path):
    # A package that cannot be imported.
    (tmp_path / "detlite").mkdir()
    (tmp_path / "detlite" / "__init__.py").write_text("raise ImportError('broken on purpose')\n")
    command = (TOOLS / "gpu_check.py", "--out", tmp_path / "out", "--only", "calls")
    result = run(*command, PYTHONPATH=str(tmp_path))
    assert result.returncode == 1
    assert "broken on purpose" in result.stdout
    (step,) = json.loads((tmp_path / "out" / "report.json").read_text())["steps"]
    assert step["verdict"] == "failed"


@pytest.mark.slow
def test_operators_do_not_need_yacs(tmp_path):
    hidden = "import sys\nsys.modules['yacs'] = None\n"  # its import is an error
    (tmp_path / "sitecustomize.py").write_text(hidden)
    path = f"{tmp_path}:{TOOLS.parent}"
    result = run(TOOLS / "gpu_steps.py", "graph", "cpu", PYTHONPATH=path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "roi_align: ok" in result.stdout
    failed = run("-c", "import yacs", PYTHONPATH=path)
    assert "yacs" in failed.stderr  # yacs is really hidden


@pytest.mark.slow
def test_remaining_steps_on_the_cpu():
    code = "import gpu_steps as s; print(s.large('cpu', 2000), s.stream('cpu'), s.training('cpu'))"
    result = run("-c", f"import sys; sys.path.insert(0, {str(TOOLS)!r}); {code}")
    assert result.stdout.splitlines()[-1:] == ["True True True"], result.stdout + result.stderr


@pytest.mark.slow
def test_benchmarks_run_on_the_cpu(tmp_path):
    file = tmp_path / "rows.json"
    options = ("--device", "cpu", "--small", "--calls", 1, "--json", file)
    result = run(TOOLS / "gpu_benchmark.py", *options)
    assert result.returncode == 0, result.stderr
    rows = json.loads(file.read_text())
    assert {"roi_align_7_s2_backward", "pyramid_16x512_cl_backward"} <= {x["case"] for x in rows}
    assert all(row["detlite_ms"] > 0 for row in rows)
    assert result.stdout.count("\n| `") == len(rows)
