"""Which detectors an evaluation compiles, and the views of a config."""

from types import SimpleNamespace

import pytest
import torch

from detlite.config import load_config
from detlite.inference import build
from detlite.inference.options import InferenceOptions, View, build_options


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
def test_models_are_compiled_on_request(monkeypatch, compiles, optimizes, device, expected):
    model = SimpleNamespace(device=torch.device(device))
    monkeypatch.setattr(build, "optimize", lambda model, dtype: model)
    monkeypatch.setattr(build, "compile_parts", lambda model, parts: "compiled")
    options = InferenceOptions(optimize=optimizes)
    detector, dtype = build.build_detector(model, options, is_compiled=compiles)
    assert (detector == "compiled") == expected
    assert dtype == "float32"


def test_views_from_the_config():
    keys = ["INPUT.MIN_SIZE_TEST", 300, "INPUT.MAX_SIZE_TEST", 500, "TEST.BBOX_AUG.MAX_SIZE", 900,
            "TEST.BBOX_AUG.H_FLIP", True, "TEST.BBOX_AUG.SCALES", (200, 400)]  # fmt: skip
    assert build_options(load_config(None, keys)).views == []
    keys += ["TEST.BBOX_AUG.ENABLED", True]
    views = [View(300, 500), View(300, 500, True), View(200, 900), View(400, 900)]
    assert build_options(load_config(None, keys)).views == views
    keys += ["TEST.BBOX_AUG.SCALE_H_FLIP", True, "TEST.BBOX_AUG.H_FLIP", False]
    assert build_options(load_config(None, keys)).views == [
        View(300, 500), View(200, 900), View(200, 900, True), View(400, 900), View(400, 900, True),
    ]  # fmt: skip
