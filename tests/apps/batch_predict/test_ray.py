"""Test the workers of Ray Data, on a local Ray."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detlite.apps.batch_predict.ray import _Worker, ray_entries

NAMES = ["a.jpg", os.fsdecode(b"caf\xe9.jpg"), "c.jpg"]


def make_entries(images: Sequence[str], ids: Sequence[int]) -> Iterator[dict[str, Any]]:
    for name, image_id in zip(images, ids, strict=True):
        yield {"image": {"id": image_id, "file_name": name}, "objects": [{"score": 0.5}]}


def start(killed: Path | None = None) -> Callable[..., Iterator[dict[str, Any]]]:
    """Return a function that yields entries; the first process to call it dies."""

    def predict(images: Sequence[str], ids: Sequence[int]) -> Iterator[dict[str, Any]]:
        if killed and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return make_entries(images, ids)

    return predict


def test_names_that_are_not_utf8_reach_a_worker():
    batch = {"image": np.array(['"caf\\udce9.jpg"']), "id": np.array([3])}
    entry = '{"image": {"id": 3, "file_name": "caf\\udce9.jpg"}, "objects": [{"score": 0.5}]}'
    assert _Worker(start)(batch) == {"entry": [entry]}


@pytest.mark.slow  # starts Ray
def test_killed_worker_loses_nothing(tmp_path, repo_root, monkeypatch):
    monkeypatch.setattr("builtins.print", print)  # Ray replaces it
    ray = pytest.importorskip("ray", reason="needs ray, detlite[ray]")
    killed = tmp_path / "killed"

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
        entries = list(ray_entries(partial(start, killed), NAMES * 60, range(1, 181), 1))
    finally:
        signal.alarm(0)
        ray.shutdown()
    assert killed.exists()
    assert entries == list(make_entries(NAMES * 60, range(1, 181)))  # in order
