"""Test the stage of Ray Data, on a local Ray."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from yacs.config import CfgNode

from detlite import load_checkpoint
from detlite.apps.batch_predict.ray import Detect
from tests.builders import write_weights


@pytest.fixture
def weights(tiny_config: Callable[..., CfgNode], tmp_path: Path) -> Path:
    """Write the checkpoint of an untrained model that detects something everywhere."""
    cfg = tiny_config("INPUT.MIN_SIZE_TEST", 64, "MODEL.ROI_HEADS.SCORE_THRESH", 0.0)
    return write_weights(cfg, tmp_path / "model.pth")


@pytest.fixture
def names(tmp_path: Path) -> list[str]:
    """Write six images; the fifth is damaged."""
    rng = np.random.default_rng(0)
    names = [str(tmp_path / f"{number}.png") for number in range(6)]
    for name in names:
        Image.fromarray(rng.integers(0, 256, (40, 60, 3), dtype=np.uint8)).save(name)
    Path(names[4]).write_bytes(b"not an image")
    return names


def check_rows(rows: list[dict[str, Any]], names: list[str], weights: Path) -> None:
    """Check that each image occurs once, with the detections of a Predictor."""
    assert [row["image"] for row in rows] == names
    assert [row["problem"] is None for row in rows] == [True] * 4 + [False, True]
    assert rows[4]["problem"].startswith(f"{names[4]}: the image is damaged")
    assert (rows[4]["height"], rows[4]["objects"]) == (None, [])
    predictor = load_checkpoint(weights, score_thresh=0.0, rle=True)
    for row in (rows[0], rows[3]):
        prediction = predictor(row["image"])
        assert (row["height"], row["width"]) == (40, 60)
        assert [one["category"] for one in row["objects"]] == prediction["names"]
        assert len(prediction["names"]) > 0
        np.testing.assert_allclose(
            [one["score"] for one in row["objects"]], prediction["scores"].numpy(), atol=1e-4
        )
        x1, y1, x2, y2 = prediction["boxes"].numpy().T
        sides = [[one[side] for side in ("x", "y", "width", "height")] for one in row["objects"]]
        np.testing.assert_allclose(sides, np.stack([x1, y1, x2 - x1, y2 - y1], 1), atol=1e-2)
        assert all(one["mask"] for one in row["objects"])


def test_batch_becomes_a_table(weights, names):
    pytest.importorskip("pyarrow", reason="needs pyarrow, detlite[ray]")
    table = Detect(str(weights), 0.0, batch_size=2)({"image": np.array(names)})
    check_rows(table.to_pylist(), names, weights)


@pytest.mark.slow  # starts Ray
def test_killed_worker_loses_nothing(weights, names, tmp_path, repo_root, monkeypatch):
    monkeypatch.setattr("builtins.print", print)  # Ray replaces it
    ray = pytest.importorskip("ray", reason="needs ray, detlite[ray]")
    killed = tmp_path / "killed"

    class DyingDetect(Detect):  # local, so that Ray pickles its code
        def __call__(self, batch: Any) -> Any:
            if names[3] in batch["image"] and not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__call__(batch)

    def give_up(*_: Any) -> None:
        raise TimeoutError("Ray's workers do not start or end")

    # Ray waits forever for workers that cannot start.
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(300)
    path = os.pathsep.join([str(repo_root), *sys.path])
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}},
    )
    try:
        images = ray.data.from_items([{"image": name} for name in names])
        stage = images.map_batches(
            DyingDetect,
            fn_constructor_args=[str(weights), 0.0],
            batch_size=2,
            compute=ray.data.ActorPoolStrategy(size=1),
        )
        rows = sorted(stage.take_all(), key=lambda row: row["image"])
    finally:
        signal.alarm(0)
        ray.shutdown()
    assert killed.exists()
    check_rows(rows, names, weights)
