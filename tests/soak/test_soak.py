"""Tests of soak.py: a short run, and detection of wrong results."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))

from tests.soak.compare import first_difference  # noqa: E402


def soak(folder: Path, *args: object, before: str = "pass") -> tuple[int, dict]:
    """Return status and summary of soak.py; `before` is code to run first."""
    code = f"import sys, soak; {before}; sys.exit(soak.main())"
    path = f"{FOLDER}{os.pathsep}{FOLDER.parents[1]}"
    done = subprocess.run(
        [sys.executable, "-c", code, "--folder", str(folder), *map(str, args)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert (folder / "summary.json").exists(), done.stderr
    return done.returncode, json.loads((folder / "summary.json").read_text())


@pytest.mark.slow
def test_interrupted_runs_equal_the_uninterrupted_run(tmp_path):
    status, summary = soak(tmp_path, "--minutes", 0.5, "--rounds", 1, "--seed", 1)
    assert status == 0, summary["failure"]
    assert summary["failure"] == ""
    assert summary["interrupted runs"] >= 1
    assert summary["interruptions"] >= 1
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert len(rows) == summary["processes"]
    assert {row["seed"] for row in rows} == {1}


@pytest.mark.slow
def test_unexpected_status_is_a_failure(tmp_path):
    args = ["--minutes", 0.5, "--seed", 1]
    status, summary = soak(tmp_path, *args, before="soak.STATUSES['none'] = {5}")
    assert status == 1
    assert "uninterrupted ends with status 0 after the fault" in summary["failure"]
    assert summary["failure"].endswith("repeat with: python tests/soak/soak.py --seed 1 --rounds 1")


@pytest.fixture
def runs(tmp_path):
    """Folders of two equal runs."""
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    content = {
        "model": {"w": torch.zeros(3), "b": torch.ones(2)},
        "config": "OUTPUT_DIR: one\n",
        "training": {"optimizer": {"state": {0: {"momentum_buffer": torch.zeros(3)}}}},
    }
    torch.save(content, one / "model_final.pth")
    (one / "metrics.jsonl").write_text('{"iteration": 1, "loss": 1.5, "time": 2.0}\n')
    (one / "evaluation.json").write_text('{"bbox": {"AP": 0.5}}')
    shutil.copytree(one, other)
    return one, other


def test_equal_runs_have_no_difference(runs):
    (runs[1] / "metrics.jsonl").write_text('{"iteration": 1, "loss": 1.5, "time": 9.0}\n')
    assert first_difference(*runs) == ""


def rewrite(file: Path, alter) -> None:
    content = torch.load(file)
    alter(content)
    torch.save(content, file)


def test_first_difference_is_named(runs):
    one, other = runs
    final = other / "model_final.pth"
    before = final.read_bytes()
    rewrite(final, lambda content: content["model"]["w"].add_(1e-45))
    assert first_difference(one, other) == "model_final.pth['model']['w']: different values"
    final.write_bytes(before)
    first_state = lambda content: content["training"]["optimizer"]["state"][0]  # noqa: E731
    rewrite(final, lambda content: first_state(content)["momentum_buffer"].add_(1))
    assert "['momentum_buffer']" in first_difference(one, other)
    final.write_bytes(before)
    (other / "metrics.jsonl").write_text('{"iteration": 1, "loss": 1.25, "time": 2.0}\n')
    assert first_difference(one, other) == "metrics.jsonl[0]['loss']: 1.5 and 1.25"
    (other / "metrics.jsonl").write_text("")
    assert first_difference(one, other) == "metrics.jsonl[0]['iteration'] is in only one of the two"
    (other / "metrics.jsonl").unlink()
    assert first_difference(one, other) == "metrics.jsonl is in only one of the two"
