"""Convert the test pipeline of an mmdetection config: size, channel order, scale and padding."""

import math
from collections.abc import Sequence
from typing import Any

from detlite.conversion.checkpoint_source import ConfigValues, pixel_config

from .config_file import ConfigSection

# Steps that do not change the image.
_WITHOUT_EFFECT = "LoadAnnotations ImageToTensor DefaultFormatBundle Collect PackDetInputs"
_DIVISIBILITY = "DATALOADER.SIZE_DIVISIBILITY"


def pipeline_config(tree: dict[str, Any], model: ConfigSection) -> ConfigValues:
    """Return the config of the test pipeline and, in version 3, of the data preprocessor."""
    config: ConfigValues = {_DIVISIBILITY: 1}
    for step in _pipeline(tree):
        if step.kind == "MultiScaleFlipAug":  # version 2 nests the steps that follow
            config |= _size(step.check(), "img_scale")
            for inner in step.sections("transforms"):
                if inner.kind != "RandomFlip":  # `flip` is checked above
                    config |= _step(inner)
        else:
            config |= _step(step)
    if "data_preprocessor" in model:
        config |= _preprocessor(model.section("data_preprocessor", "DetDataPreprocessor"), config)
    for key, step_name in (("INPUT.MIN_SIZE_TEST", "Resize"), ("INPUT.PIXEL_MEAN", "Normalize")):
        if key not in config:
            raise ValueError(f"its config has no {step_name} in its test pipeline")
    return config


def _pipeline(tree: dict[str, Any]) -> list[ConfigSection]:
    """Return the steps of the test pipeline, where version 3, version 2 or older files have it."""
    for name, key in (("test_dataloader", "dataset"), ("data", "test")):
        data = tree.get(name)
        inner = data.get(key) if isinstance(data, dict) else None
        if isinstance(inner, dict) and inner.get("pipeline") is not None:
            return ConfigSection(inner, f"{name}.{key}").sections("pipeline")
    return ConfigSection(tree, "the file").sections("test_pipeline")


def _step(step: ConfigSection) -> ConfigValues:
    if step.kind in _WITHOUT_EFFECT.split():
        return {}
    step.check("LoadImageFromFile", "Resize", "Normalize", "Pad")
    if step.kind == "Normalize":
        return _pixels(step.numbers("mean"), step.numbers("std"), step.get("to_rgb", True), step)
    if step.kind == "Pad":
        return {_DIVISIBILITY: int(step.number("size_divisor"))}
    if step.kind == "Resize" and not step.get("keep_ratio", False):
        step.reject("keep_ratio", "True")
    names = [key for key in ("scale", "img_scale") if key in step]
    return _size(step, names[0]) if names else {}


def _preprocessor(inputs: ConfigSection, steps: ConfigValues) -> ConfigValues:
    """Return the config of the data preprocessor, which runs after the pipeline's `steps`."""
    divisor = int(inputs.number("pad_size_divisor", 1))
    padded = {_DIVISIBILITY: math.lcm(steps[_DIVISIBILITY], divisor)}
    if "INPUT.PIXEL_MEAN" in steps:
        for key in ("mean", "std", "bgr_to_rgb"):
            if inputs.get(key):
                inputs.reject(key, "None, after a step Normalize,")
        return padded
    mean, std = inputs.numbers("mean", [0.0] * 3), inputs.numbers("std", [1.0] * 3)
    return padded | _pixels(mean, std, inputs.get("bgr_to_rgb", False), inputs)


def _pixels(
    mean: Sequence[float], std: Sequence[float], rgb: Any, inputs: ConfigSection
) -> ConfigValues:
    if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
        raise ValueError(f"its config says {inputs.where}: mean and std must be three numbers each")
    return pixel_config(mean, std, rgb)


def _size(step: ConfigSection, key: str) -> ConfigValues:
    value = step.get(key)
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], tuple):
        value = value[0]
    numbers = isinstance(value, (list, tuple)) and all(type(side) is int for side in value)
    if not numbers or len(value) != 2:
        step.reject(key, "one (long, short)")
    return {"INPUT.MIN_SIZE_TEST": min(value), "INPUT.MAX_SIZE_TEST": max(value)}
