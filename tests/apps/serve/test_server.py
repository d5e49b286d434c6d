"""Test `detlite serve` as a process under load, and its end. `clients.py` is the long form."""

import http.client
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from yacs.config import CfgNode

from detlite import build_model
from detlite.conversion.checkpoint.files import Checkpoint, save_checkpoint
from tests.apps.serve.clients import noise_jpeg, post, run_clients, start_server

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")


@pytest.fixture
def weights(tiny_config: Callable[..., CfgNode], tmp_path: Path) -> str:
    """Return the checkpoint of an untrained model that detects something everywhere."""
    cfg = tiny_config("INPUT.MIN_SIZE_TEST", 64, "MODEL.ROI_HEADS.SCORE_THRESH", 0.0)
    categories = [{"id": 10 * k, "name": f"category {k}"} for k in (1, 2, 3)]
    path = tmp_path / "model.pth"
    save_checkpoint(Checkpoint(path, build_model(cfg).state_dict(), categories, cfg.dump()))
    return str(path)


@pytest.mark.slow
def test_every_request_is_answered_under_load_and_at_the_end(
    weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    process, port = start_server(weights, "--batch-size", "2", "--threshold", "0")
    try:
        outcome = run_clients(port, seconds=3, clients=6)
        assert outcome.sent > 20
        assert dict(outcome.statuses) == {200: outcome.sent}
        assert outcome.wrong == 0
        assert max(outcome.memory) - outcome.memory[0] < 300  # megabytes of warm-up

        # Of sixteen concurrent requests some run and the others wait.
        statuses: list[int] = []
        connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=60) for _ in range(16)]
        for connection in connections:
            connection.connect()

        def ask(connection: http.client.HTTPConnection) -> None:
            statuses.append(post(connection, noise_jpeg(300, 300))[0])

        threads = [threading.Thread(target=ask, args=(own,)) for own in connections]
        for thread in threads:
            thread.start()
        while not statuses:
            time.sleep(0.001)
        process.terminate()
        for thread in threads:
            thread.join()
        assert statuses == [200] * 16
        assert process.wait(60) == 0
    finally:
        process.kill()
    assert process.stdout is not None
    assert process.stdout.read() == "all requests answered; server stopped\n"
