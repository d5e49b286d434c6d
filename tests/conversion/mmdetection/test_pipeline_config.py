"""Normalization and padding, in the pipeline or in the data preprocessor."""

from typing import Any

import pytest

from detlite.conversion.mmdetection.config_file import ConfigSection
from detlite.conversion.mmdetection.pipeline_config import pipeline_config

_LOAD = {"type": "LoadImageFromFile"}
_RESIZE = {"type": "Resize", "scale": (213, 128), "keep_ratio": True}
_NORMALIZE = {"type": "Normalize", "mean": [3.0, 2, 1], "std": [1.0, 1, 1], "to_rgb": False}


def config_of(preprocessor: dict[str, Any] | None, *steps: dict[str, Any]) -> dict[str, Any]:
    """Convert a pipeline of loading, resizing and `steps`."""
    model = {"data_preprocessor": {"type": "DetDataPreprocessor", **(preprocessor or {})}}
    pipeline = [_LOAD, _RESIZE, *steps]
    return pipeline_config(
        {"test_pipeline": pipeline}, ConfigSection(model if preprocessor else {}, "model")
    )


def test_normalization_in_the_pipeline():
    config = config_of({"pad_size_divisor": 32}, _NORMALIZE)
    assert config["INPUT.PIXEL_MEAN"] == [3, 2, 1]
    assert config["INPUT.TO_BGR255"] is True
    assert config["DATALOADER.SIZE_DIVISIBILITY"] == 32


@pytest.mark.parametrize("more", [{"mean": [1.0] * 3, "std": [1.0] * 3}, {"bgr_to_rgb": True}])
def test_normalization_in_both_is_rejected(more):
    with pytest.raises(ValueError, match="only None, after a step Normalize, is converted"):
        config_of({"pad_size_divisor": 32, **more}, _NORMALIZE)


@pytest.mark.parametrize(
    ("preprocessor", "steps", "expected"),
    [
        (None, (), 1),
        (None, (16,), 16),
        ({"pad_size_divisor": 1}, (32,), 32),
        ({"pad_size_divisor": 32}, (16,), 32),
    ],
)
def test_padding(preprocessor, steps, expected):
    pads = [{"type": "Pad", "size_divisor": divisor} for divisor in steps]
    config = config_of(preprocessor, _NORMALIZE, *pads)
    assert config["DATALOADER.SIZE_DIVISIBILITY"] == expected
