"""A short form of soak.py, and that it would notice."""

from __future__ import annotations

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
    """Status and summary of a round; `before` it some code is run."""
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


def test_interrupted_runs_are_the_unbroken_one(tmp_path):
    status, summary = soak(tmp_path, "--minutes", 0.5, "--rounds", 1, "--seed", 1)
    assert status == 0, summary["finding"]
    assert summary["finding"] == ""
    assert summary["broken runs"] >= 1
    assert summary["interruptions"] >= 1
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert len(rows) == summary["processes"]
    assert {row["seed"] for row in rows} == {1}


def test_another_status_is_a_finding(tmp_path):
    args = ["--minutes", 0.5, "--seed", 1]
    status, summary = soak(tmp_path, *args, before="soak.STATUSES['none'] = {5}")
    assert status == 1
    assert "unbroken ends with status 0 after the trouble" in summary["finding"]
    assert summary["finding"].endswith("again: python tests/soak/soak.py --seed 1 --rounds 1")


@pytest.fixture
def runs(tmp_path):
    """Two folders of equal runs."""
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


def change(file: Path, alter) -> None:
    content = torch.load(file)
    alter(content)
    torch.save(content, file)


def test_differences_are_named(runs):
    one, other = runs
    final = other / "model_final.pth"
    before = final.read_bytes()
    change(final, lambda content: content["model"]["w"].add_(1e-45))
    assert first_difference(one, other) == "model_final.pth['model']['w']: other numbers"
    final.write_bytes(before)
    buffers = lambda content: content["training"]["optimizer"]["state"][0]  # noqa: E731
    change(final, lambda content: buffers(content)["momentum_buffer"].add_(1))
    assert "['momentum_buffer']" in first_difference(one, other)
    final.write_bytes(before)
    (other / "metrics.jsonl").write_text('{"iteration": 1, "loss": 1.25, "time": 2.0}\n')
    assert first_difference(one, other) == "metrics.jsonl[0]['loss']: 1.5 and 1.25"
    (other / "metrics.jsonl").write_text("")
    assert first_difference(one, other) == "metrics.jsonl: 1 and 0 entries"
    (other / "metrics.jsonl").unlink()
    assert first_difference(one, other) == "metrics.jsonl is in one of the two only"
