"""Which detectors an evaluation compiles."""

from types import SimpleNamespace

import pytest
import torch

from detlite.inference import build


@pytest.mark.parametrize(
    ("compiles", "optimizes", "device", "expected"),
    [
        (False, False, "cpu", False),
        (True, False, "cpu", True),
        (True, True, "cpu", False),  # oneDNN has fused it
        (True, True, "cuda", True),
        (False, True, "cuda", False),
    ],
)
def test_evaluation_compiles_on_request(
    tiny_config, monkeypatch, compiles, optimizes, device, expected
):
    cfg = tiny_config("MODEL.COMPILE", compiles, "TEST.OPTIMIZE", optimizes)
    model = SimpleNamespace(device=torch.device(device), use_memory_format=lambda: None)
    monkeypatch.setattr(build, "optimize_model", lambda model, options: (model, "float32"))
    monkeypatch.setattr(build, "compile_parts", lambda model, parts: "compiled")
    detector, dtype = build.build_detector(cfg, model)
    assert (detector == "compiled") == expected
    assert dtype == "float32"
