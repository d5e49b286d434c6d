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


def soak(folder: Path, *args: object, before: str = "pass") -> tuple[int, list[str]]:
    """Return status and printed lines of soak.py; `before` is code to run first."""
    code = f"import sys, soak; {before}; sys.exit(soak.main())"
    path = f"{FOLDER}{os.pathsep}{FOLDER.parents[1]}"
    done = subprocess.run(
        [sys.executable, "-c", code, "--folder", str(folder), *map(str, args)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=280,
    )
    return done.returncode, (done.stdout or done.stderr).splitlines()


@pytest.mark.slow
def test_interrupted_runs_equal_the_uninterrupted_run(tmp_path):
    status, (*rows, last) = soak(tmp_path, "--minutes", 0.5, "--rounds", 1, "--seed", 1)
    assert status == 0, last
    counts = json.loads(last)
    assert min(counts["interrupted runs"], counts["interruptions"]) >= 1
    assert [json.loads(row)["seed"] for row in rows] == [1] * counts["processes"]


@pytest.mark.slow
def test_unexpected_status_is_a_failure(tmp_path):
    args = ["--minutes", 0.5, "--seed", 1]
    status, lines = soak(tmp_path, *args, before="soak.STATUSES['none'] = {5}")
    assert status == 1
    assert any("uninterrupted ends with status 0 after the fault" in line for line in lines)
    assert lines[-1] == "repeat with: python tests/soak/soak.py --seed 1 --rounds 1"


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


def changed_weights(file: Path) -> None:
    content = torch.load(file)
    content["model"]["w"].add_(1e-45)
    torch.save(content, file)


def changed_state(file: Path) -> None:
    content = torch.load(file)
    content["training"]["optimizer"]["state"][0]["momentum_buffer"].add_(1)
    torch.save(content, file)


LINE = '{"iteration": 1, "loss": %s, "time": %s}\n'


@pytest.mark.parametrize(
    ("name", "change", "difference"),
    [
        ("metrics.jsonl", lambda file: file.write_text(LINE % (1.5, 9.0)), ""),
        ("metrics.jsonl", lambda file: file.write_text(LINE % (1.25, 2.0)),
         "metrics.jsonl[0]['loss']: 1.5 and 1.25"),
        ("metrics.jsonl", lambda file: file.write_text(""),
         "metrics.jsonl[0]['iteration'] is in only one of the two"),
        ("metrics.jsonl", Path.unlink, "metrics.jsonl is in only one of the two"),
        ("model_final.pth", changed_weights, "model_final.pth['model']['w']: different values"),
        ("model_final.pth", changed_state, "model_final.pth['training']['optimizer']['state'][0]"
         "['momentum_buffer']: different values"),
    ],
)  # fmt: skip
def test_first_difference(runs, name, change, difference):
    one, other = runs
    change(other / name)
    assert first_difference(one, other) == difference
