"""Convert the test pipeline of an mmdetection config: size, channel order, scale and padding."""

import math
from collections.abc import Sequence
from typing import Any

from detlite.conversion.checkpoint_source import ConfigValues, pixel_config

from .config_section import ConfigSection

# Steps that do not change the image.
_WITHOUT_EFFECT = (
    "LoadAnnotations",
    "ImageToTensor",
    "DefaultFormatBundle",
    "Collect",
    "PackDetInputs",
)
_DIVISIBILITY = "DATALOADER.SIZE_DIVISIBILITY"


def pipeline_config(tree: dict[str, Any], model: ConfigSection) -> ConfigValues:
    """Return the config of the test pipeline and, in version 3, of the data preprocessor."""
    config: ConfigValues = {_DIVISIBILITY: 1}
    for step in _pipeline(tree):
        if step.kind == "MultiScaleFlipAug":  # version 2 nests the steps that follow
            step.check((), "img_scale transforms", flip=(False,), scale_factor=())
            config |= _size(step, "img_scale")
            for inner in step.sections("transforms"):
                if inner.kind != "RandomFlip":  # `flip` is checked above
                    config |= _step(inner)
        else:
            config |= _step(step)
    if "data_preprocessor" in model:
        config |= _preprocessor(model.section("data_preprocessor"), config)
    for key, step_name in (("INPUT.MIN_SIZE_TEST", "Resize"), ("INPUT.PIXEL_MEAN", "Normalize")):
        if key not in config:
            raise ValueError(f"its config has no {step_name} in its test pipeline")
    return config


def _pipeline(tree: dict[str, Any]) -> list[ConfigSection]:
    """Return the steps of the test pipeline of version 3, of version 2, or in `test_pipeline`."""
    for name in ("test_dataloader", "data"):
        if isinstance(tree.get(name), dict):
            outer = ConfigSection(tree[name], name)
            key = "dataset" if name == "test_dataloader" else "test"
            if key in outer and "pipeline" in outer.section(key):
                return outer.section(key).sections("pipeline")
    return ConfigSection(tree, "the file").sections("test_pipeline")


def _step(step: ConfigSection) -> ConfigValues:
    if step.kind in _WITHOUT_EFFECT:
        return {}
    if step.kind == "Resize":
        step.check(
            (),
            "img_scale scale multiscale_mode bbox_clip_border clip_object_border override",
            off="ratio_range scale_factor",
            keep_ratio=(True,),
            interpolation=("bilinear",),
            backend=("cv2",),
        )
        if not step.get("keep_ratio", False):
            step.reject("keep_ratio", "True")
        names = [key for key in ("scale", "img_scale") if key in step]
        return _size(step, names[0]) if names else {}
    if step.kind == "Normalize":
        step.check((), "mean std to_rgb")
        return _pixels(step.numbers("mean"), step.numbers("std"), step.get("to_rgb", True), step)
    if step.kind == "Pad":
        step.check((), "size_divisor", pad_val=(0, {"img": 0, "masks": 0, "seg": 255}))
        return {_DIVISIBILITY: int(step.number("size_divisor"))}
    step.check(
        ("LoadImageFromFile", "Resize", "Normalize", "Pad"),
        "file_client_args backend_args to_float32",
        color_type=("color",),
        channel_order=("bgr",),
        imdecode_backend=("cv2",),
    )
    return {}


def _preprocessor(section: ConfigSection, steps: ConfigValues) -> ConfigValues:
    """Return the config of the data preprocessor, which runs after the pipeline's `steps`."""
    section.check(
        ("DetDataPreprocessor",),
        "mean std bgr_to_rgb pad_size_divisor pad_mask mask_pad_value pad_seg seg_pad_value "
        "boxtype2tensor non_blocking batch_augments",
        off="rgb_to_bgr",
        pad_value=(0,),
    )
    divisor = int(section.number("pad_size_divisor", 1))
    padded = {_DIVISIBILITY: math.lcm(steps[_DIVISIBILITY], divisor)}
    if "INPUT.PIXEL_MEAN" in steps:
        for key in ("mean", "std", "bgr_to_rgb"):
            if section.get(key):
                section.reject(key, "None, after a step Normalize,")
        return padded
    mean, std = section.numbers("mean", [0.0] * 3), section.numbers("std", [1.0] * 3)
    return padded | _pixels(mean, std, section.get("bgr_to_rgb", False), section)


def _pixels(
    mean: Sequence[float], std: Sequence[float], rgb: Any, section: ConfigSection
) -> ConfigValues:
    if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
        raise ValueError(
            f"its config says {section.where}: mean and std must be three numbers each"
        )
    return pixel_config(mean, std, rgb)


def _size(step: ConfigSection, key: str) -> ConfigValues:
    value = step.get(key)
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], tuple):
        value = value[0]
    numbers = isinstance(value, (list, tuple)) and all(type(side) is int for side in value)
    if not numbers or len(value) != 2:
        step.reject(key, "one (long, short)")
    return {"INPUT.MIN_SIZE_TEST": min(value), "INPUT.MAX_SIZE_TEST": max(value)}
