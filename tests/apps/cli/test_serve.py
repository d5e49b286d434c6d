"""Test the options of `detlite serve`; tests/apps/serve tests the service."""

import re
import socket
import sys
from typing import Any

import pytest
from PIL import Image

from detlite.apps.cli.main import main
from detlite.inference.predictor import Predictor

pytest.importorskip("starlette")
pytest.importorskip("hypercorn")
pytest.importorskip("prometheus_client")

from detlite.apps.serve import server
from detlite.apps.serve.requests import Limits
from tests.builders import tiny_config, write_weights


@pytest.fixture
def weights(tmp_path):
    """`weights(*opts)`: the checkpoint of an untrained model."""
    return lambda *opts: str(write_weights(tiny_config(*opts), tmp_path / "model.pth"))


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Predictor, Limits, str]]:
    """Record predictor, limits and address of each server instead of serving."""
    calls: list[tuple[Predictor, Limits, str]] = []

    async def record(app: tuple[Predictor, Limits], listener: socket.socket, *_: Any) -> None:
        calls.append((*app, listener.getsockname()[0]))

    monkeypatch.setattr(server, "build_app", lambda *inputs: inputs)
    monkeypatch.setattr(server, "run_app", record)
    return calls


def test_options_reach_the_predictor_and_the_limits(weights, served, tmp_path):
    options = "--port 0 --threshold 0.2 --batch-size 3 --max-requests 5 --timeout 7 --max-bytes 11"
    arguments = ["--weights", weights(), *options.split(), "--max-pixels", "99"]
    assert main(["serve", *arguments, "INPUT.MIN_SIZE_TEST", "64"]) == 0
    ((predictor, limits, address),) = served
    assert address == "127.0.0.1"  # the default
    assert limits == Limits(11, 99, 7.0, 5, 3, 0.2)
    assert (predictor.score_thresh, predictor.rle, predictor.min_size) == (0.05, True, 64)
    Image.new("RGB", (10, 10)).save(tmp_path / "p.png")
    with pytest.raises(ValueError, match="more than 99 pixels"):
        predictor.load((tmp_path / "p.png").read_bytes())


@pytest.mark.parametrize(("stored", "expected"), [(0.0, 0.5), (0.3, 0.3)])
def test_default_threshold_is_that_of_the_checkpoint(weights, served, stored, expected):
    """Requests can have a lower one."""
    path = weights("TEST.SCORE_THRESHOLD", stored)
    assert main(["serve", "--weights", path, "--port", "0"]) == 0
    ((predictor, limits, _),) = served
    assert (limits.threshold, limits.lowest_threshold) == (expected, 0.05)
    assert predictor.score_thresh == 0.05


@pytest.mark.parametrize(("limit", "lower"), [("50", 50), ("5000", 99)])
def test_lower_pixel_limit_applies(weights, served, limit, lower):
    arguments = ["--weights", weights(), "--port", "0", "--max-pixels", "99"]
    assert main(["serve", *arguments, "DATASETS.MAX_PIXELS", limit]) == 0
    ((predictor, limits, _),) = served
    assert predictor.image_options.max_pixels == limits.pixels == lower


@pytest.mark.parametrize(
    ("options", "opts", "error"),
    [
        ("--timeout 0", (), "--timeout: 0: must be at least 0.001"),
        ("--max-bytes -1", (), "--max-bytes: -1: must be at least 1"),
        ("--threshold 2", (), "score threshold 2.0: must be a number in 0..1"),
        ("--port 70000", (), "--port 70000: cannot listen there"),
        ("--host 192.0.2.1", (), "--host 192.0.2.1 --port 8000: cannot listen there"),
        ("", ("MODEL.LOAD_PROPOSALS", True), "a Fast R-CNN needs proposals"),
        ("--weights model.onnx --config demo_shapes.yaml", (), "--config cannot be changed"),
        ("--weights model.onnx INPUT.TILE 64", (), "INPUT.TILE cannot be changed"),
    ],
)
def test_unusable_options(weights, served, error_of, options, opts, error):
    assert error in error_of("serve", "--weights", weights(*opts), *options.split())
    assert served == []


def test_taken_port_and_missing_package(weights, monkeypatch, error_of):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        error = error_of("serve", "--weights", weights(), "--port", port)
    assert "--port 0 selects a free port" in error
    monkeypatch.setitem(sys.modules, "hypercorn", None)
    expected = r"cannot import hypercorn \(.*\): pip install 'detlite\[serve\]'"
    assert re.fullmatch(expected, error_of("serve", "--weights", weights()))
