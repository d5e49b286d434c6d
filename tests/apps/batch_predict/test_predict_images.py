"""Test loading the predictor of a checkpoint or an exported model."""

from collections.abc import Callable
from typing import Any

import pytest
from yacs.config import CfgNode

from detlite import ConfigError, build_model
from detlite.apps.batch_predict.predict_images import load_predictor
from detlite.apps.export import exported_detector
from detlite.apps.export.exported_program import ProgramDetector
from detlite.data.images.pixels import ImageOptions
from detlite.inference.options import InferenceOptions
from detlite.inference.predictor import Predictor

KEYS = (
    "MODEL.ROI_HEADS.SCORE_THRESH", 0.0, "INPUT.MIN_SIZE_TEST", 64, "TEST.TILE", 80,
    "INPUT.IMAGE_BITS", 12, "DATASETS.MAX_PIXELS", 20_000,
)  # fmt: skip


@pytest.fixture
def exported(tiny_config: Callable[..., CfgNode], monkeypatch: pytest.MonkeyPatch) -> str:
    """Replace the reader of exported models, and return the name of a model."""
    model = build_model(tiny_config(*KEYS)).eval()
    read = lambda _, opts, trust: (tiny_config(*KEYS, *opts), model)  # noqa: E731
    monkeypatch.setattr(exported_detector, "read_exported", read)
    return "model.openvino"


@pytest.mark.parametrize(
    ("opts", "max_pixels", "tiling", "limits"),
    [
        ([], None, (80, 8), (20_000, 12)),
        (["TEST.TILE", 0], 700, (None, None), (700, 12)),
        (["TEST.TILE", 64, "TEST.IMS_PER_BATCH", 2, "DATASETS.MAX_PIXELS", 500, "INPUT.IMAGE_BITS",
          9], 700, (64, 2), (500, 9)),
    ],
)  # fmt: skip
def test_overrides_change_the_config_of_the_file(exported, opts, max_pixels, tiling, limits):
    predictor = load_predictor(exported, 0.0, opts, max_pixels=max_pixels)
    found = tuple(getattr(predictor.detector, name, None) for name in ("side", "batch"))
    images = predictor.image_options
    assert (found, (images.max_pixels, images.bits)) == (tiling, limits)


def test_options_replace_those_of_the_file(exported):
    options = InferenceOptions(images=ImageOptions(max_pixels=99, bits=10))
    images = Predictor(exported, options=options).image_options
    assert (images.max_pixels, images.bits) == (99, 10)


def test_views_of_an_exported_model(tiny_config, monkeypatch):
    """Test-time augmentation follows the config of the file; whole programs do not support it."""
    cfg = tiny_config("TEST.BBOX_AUG.ENABLED", True, "TEST.BBOX_AUG.H_FLIP", True)
    model = build_model(cfg).eval()
    monkeypatch.setattr(exported_detector, "read_exported", lambda *_: (cfg, model))
    for predictor in (Predictor("model.openvino"), load_predictor("model.openvino", 0.0)):
        detector: Any = predictor.detector
        assert [view.flip for view in detector.views] == [False, True]
    assert Predictor("model.openvino", min_size=64).detector is model
    program = ProgramDetector(model, lambda *_: [])
    monkeypatch.setattr(exported_detector, "read_exported", lambda *_: (cfg, program))
    with pytest.raises(ConfigError, match=r"TEST\.BBOX_AUG\.ENABLED must be False for an exported"):
        Predictor("model.onnx")


@pytest.mark.parametrize(
    ("opts", "config", "names"),
    [
        (["TEST.TILE", "64", "MODEL.RPN.NMS_THRESH", "0.6"], None, "MODEL.RPN.NMS_THRESH"),
        (["DTYPE", "x", "A", "1", "DTYPE", "y", "B", "1"], None, "DTYPE, A, B"),
        ([], "demo_shapes.yaml", "--config"),
    ],
)
def test_config_of_an_exported_model_is_fixed(exported, opts, config, names):
    with pytest.raises(ConfigError, match=f"exported model is fixed: {names} cannot be changed"):
        load_predictor(exported, 0.0, opts, config)
