"""Pixels and padding, where the pipeline and the model of version 3 both may say them."""

from __future__ import annotations

from typing import Any

import pytest

from detlite.conversion.mmdetection.pipeline_config import pipeline_config
from detlite.conversion.mmdetection.python_config import ConfigSection

_LOAD = {"type": "LoadImageFromFile"}
_RESIZE = {"type": "Resize", "scale": (213, 128), "keep_ratio": True}
_NORMALIZE = {"type": "Normalize", "mean": [3.0, 2, 1], "std": [1.0, 1, 1], "to_rgb": False}


def found(preprocessor: dict[str, Any] | None, *steps: dict[str, Any]) -> dict[str, Any]:
    """The keys of a pipeline that loads and resizes, and then has `steps`."""
    model = {"data_preprocessor": {"type": "DetDataPreprocessor", **(preprocessor or {})}}
    pipeline = [_LOAD, _RESIZE, *steps]
    return pipeline_config({"test_pipeline": pipeline}, ConfigSection(model if preprocessor else {}, "model"))


def test_a_model_that_does_not_normalise_leaves_it_to_the_pipeline():
    config = found({"pad_size_divisor": 32}, _NORMALIZE)
    assert config["INPUT.PIXEL_MEAN"] == [3, 2, 1]
    assert config["INPUT.TO_BGR255"] is True
    assert config["DATALOADER.SIZE_DIVISIBILITY"] == 32


@pytest.mark.parametrize("more", [{"mean": [1.0] * 3, "std": [1.0] * 3}, {"bgr_to_rgb": True}])
def test_pixels_are_changed_once(more):
    with pytest.raises(ValueError, match="only None, behind a step Normalize, is converted"):
        found({"pad_size_divisor": 32, **more}, _NORMALIZE)


@pytest.mark.parametrize(
    ("preprocessor", "steps", "wanted"),
    [
        (None, (), 1),
        (None, (16,), 16),
        ({"pad_size_divisor": 1}, (32,), 32),
        ({"pad_size_divisor": 32}, (16,), 32),
    ],
)
def test_padding_is_what_both_ask_for(preprocessor, steps, wanted):
    pads = [{"type": "Pad", "size_divisor": divisor} for divisor in steps]
    config = found(preprocessor, _NORMALIZE, *pads)
    assert config["DATALOADER.SIZE_DIVISIBILITY"] == wanted
