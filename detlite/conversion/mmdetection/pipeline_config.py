"""How a config of mmdetection brings pictures to the network: size, order, scale and padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from detlite.conversion.checkpoint_source import Config

from .python_config import Part, shown

# Steps that leave the picture as it is.
_WITHOUT_EFFECT = (
    "LoadAnnotations",
    "ImageToTensor",
    "DefaultFormatBundle",
    "Collect",
    "PackDetInputs",
)
_DIVISIBILITY = "DATALOADER.SIZE_DIVISIBILITY"


def picture_config(tree: dict[str, Any], model: Part) -> Config:
    """The keys that follow from the test pipeline, and from the model of version 3.

    Args:
        tree: the values of the config file.
        model: its dict `model`.

    Raises:
        ValueError: a step of the pipeline is not understood.
    """
    config: Config = {_DIVISIBILITY: 1}
    for step in _pipeline(tree):
        if step.kind == "MultiScaleFlipAug":  # version 2 nests the steps behind it
            step.check(step.kind.split(), "img_scale transforms", flip=(False,), scale_factor=())
            config |= _size(step, "img_scale")
            for inner in step.parts("transforms"):
                if inner.kind != "RandomFlip":  # as `flip` above says
                    config |= _step(inner)
        else:
            config |= _step(step)
    if "data_preprocessor" in model:
        config |= _preprocessor(model.part("data_preprocessor"), config)
    for key, what in (("INPUT.MIN_SIZE_TEST", "Resize"), ("INPUT.PIXEL_MEAN", "Normalize")):
        if key not in config:
            raise ValueError(f"its config has no {what} among the steps of its test pipeline")
    return config


def _pipeline(tree: dict[str, Any]) -> list[Part]:
    """The steps for pictures of the test set: of version 3, of version 2, or by name."""
    for name in ("test_dataloader", "data"):
        if isinstance(tree.get(name), dict):
            outer = Part(tree[name], name)
            key = "dataset" if name == "test_dataloader" else "test"
            if key in outer and "pipeline" in outer.part(key):
                return outer.part(key).parts("pipeline")
    return Part(tree, "the file").parts("test_pipeline")


def _step(step: Part) -> Config:
    """The keys that follow from a step."""
    if step.kind in _WITHOUT_EFFECT:
        return {}
    if step.kind == "Resize":
        step.check(
            ("Resize",),
            "img_scale scale multiscale_mode bbox_clip_border clip_object_border override",
            keep_ratio=(True,),
            ratio_range=(),
            scale_factor=(),
            interpolation=("bilinear",),
            backend=("cv2",),
        )
        if not step.get("keep_ratio", False):
            step.refuse("keep_ratio", "True")
        names = [key for key in ("scale", "img_scale") if key in step]
        return _size(step, names[0]) if names else {}
    if step.kind == "Normalize":
        step.check(("Normalize",), "mean std to_rgb")
        return _pixels(step.numbers("mean"), step.numbers("std"), step.get("to_rgb", True), step)
    if step.kind == "Pad":
        step.check(("Pad",), "size_divisor", pad_val=(0, {"img": 0, "masks": 0, "seg": 255}))
        return {_DIVISIBILITY: int(step.number("size_divisor"))}
    step.check(
        ("LoadImageFromFile", "Resize", "Normalize", "Pad"),
        "file_client_args backend_args to_float32",
        color_type=("color",),
        channel_order=("bgr",),
        imdecode_backend=("cv2",),
    )
    return {}


def _preprocessor(part: Part, steps: Config) -> Config:
    """The keys that follow from what the model does itself, behind the `steps` of the pipeline."""
    part.check(
        ("DetDataPreprocessor",),
        "mean std bgr_to_rgb pad_size_divisor pad_mask mask_pad_value pad_seg seg_pad_value "
        "boxtype2tensor non_blocking batch_augments",
        rgb_to_bgr=(False,),
        pad_value=(0,),
    )
    divisor = int(part.number("pad_size_divisor", 1))
    padded = {_DIVISIBILITY: math.lcm(steps[_DIVISIBILITY], divisor)}
    if "INPUT.PIXEL_MEAN" in steps:
        for key in ("mean", "std", "bgr_to_rgb"):
            if part.get(key):
                part.refuse(key, "None, behind a step Normalize,")
        return padded
    mean, std = part.numbers("mean", [0.0] * 3), part.numbers("std", [1.0] * 3)
    return padded | _pixels(mean, std, part.get("bgr_to_rgb", False), part)


def _pixels(mean: Sequence[float], std: Sequence[float], rgb: Any, part: Part) -> Config:
    if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
        raise ValueError(f"its config says {part.where}: mean and std must be three numbers each")
    scale = 255 if rgb else 1
    return {
        "INPUT.TO_BGR255": not rgb,
        "INPUT.PIXEL_MEAN": [value / scale for value in mean],
        "INPUT.PIXEL_STD": [value / scale for value in std],
    }


def _size(step: Part, key: str) -> Config:
    value = step.get(key)
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], tuple):
        value = value[0]
    numbers = isinstance(value, (list, tuple)) and all(type(side) is int for side in value)
    if not numbers or len(value) != 2:
        raise ValueError(
            f"its config says {step.where}.{key} = {shown(value)}: only one (long, short) is "
            "converted"
        )
    return {"INPUT.MIN_SIZE_TEST": min(value), "INPUT.MAX_SIZE_TEST": max(value)}
