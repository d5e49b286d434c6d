"""Recorded configs and outputs of mmdetection for narrow models, compared with converted models.

`outputs.npz` has the version of mmdetection, and for each model its config as in checkpoints, the
shapes of its weights, and its detections in two images.
"""

import json
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import detlite
from detlite.conversion.mmdetection.config_file import read_python_config
from detlite.data.transforms.resize import resize_shortest
from detlite.structures.masks.formats import encode_bitmap
from tests.conversion.detection_differences import (
    DetectionDifference,
    as_dict,
    compare,
    in_original_image,
)

OUTPUTS = Path(__file__).with_name("outputs.npz")
CLASSES = ("cup", "person", "bird", "kite")
# Factors of the last layers that lead to scores between 0 and 1 and small shifts of boxes.
_GAINS = {
    "rpn_cls": 0.5,
    "rpn_reg": 0.1,
    "fc_cls": 0.4,
    "fc_reg": 0.5,
    "retina_cls": 0.5,
    "retina_reg": 0.2,
}
PLAIN = ["MODEL.DEVICE", "cpu", "TEST.OPTIMIZE", False]


def recorded_configs() -> dict[str, dict[str, Any]]:
    """Return the config of each model as a dict."""
    recorded = np.load(OUTPUTS)
    names = [name.removesuffix("/cfg") for name in recorded if name.endswith("/cfg")]
    return {name: read_python_config(bytes(recorded[f"{name}/cfg"]).decode()) for name in names}


def config_text(config: Mapping[str, Any]) -> str:
    """Write a config as a flat Python file."""
    return "".join(f"{name} = {value!r}\n" for name, value in config.items())


def weights(shapes: Mapping[str, list[int]], caffe: bool) -> dict[str, torch.Tensor]:
    """Make weights that depend on their names and shapes only."""
    state = {}
    for name, shape in shapes.items():
        drawn = np.random.RandomState(zlib.crc32(name.encode())).uniform(size=shape or None)
        layer, leaf = name.split(".")[-2:]
        if leaf == "num_batches_tracked":
            value = np.zeros(())
        elif leaf == "running_var":
            value = 0.5 + drawn
        elif len(shape) == 1 and leaf == "weight":
            value = (0.8 + 0.4 * drawn) / (4 if layer == "bn3" else 1)
        elif len(shape) == 1:
            value = (drawn - 0.5) * 0.2 - (1.0 if layer == "retina_cls" else 0)
        else:
            fan_in = shape[0] if layer == "upsample" else int(np.prod(shape[1:]))
            value = (drawn - 0.5) * (24 / fan_in) ** 0.5 * _GAINS.get(layer, 1.0)
            axes = 0 if layer == "upsample" else tuple(range(1, len(shape)))
            value = value - value.mean(axis=axes, keepdims=True)
            if caffe and name == "backbone.conv1.weight":
                value = value / 57
        state[name] = torch.from_numpy(np.asarray(value))
        state[name] = state[name].long() if leaf == "num_batches_tracked" else state[name].float()
    return state


def make_images() -> Iterator[np.ndarray]:
    """Yield two RGB images uint8 [H, W, 3]."""
    for seed, size in enumerate(((9, 12), (11, 8))):
        coarse = np.random.RandomState(seed).randint(0, 256, (*size, 3)).astype(np.uint8)
        yield coarse.repeat(10, axis=0).repeat(10, axis=1)


def state_of(name: str, recorded: Any) -> dict[str, torch.Tensor]:
    """Return the weights of a model with mmdetection's names."""
    return weights(json.loads(bytes(recorded[f"{name}/shapes"])), "caffe" in name)


def save(path: Path, state: dict[str, torch.Tensor], **meta: Any) -> Path:
    """Write a checkpoint in mmdetection's format."""
    torch.save({"meta": meta, "state_dict": state}, path)
    return path


def compare_recorded(name: str, recorded: Any) -> DetectionDifference:
    """Compare the detections of a checkpoint with its recorded config and outputs.

    Args:
        name: a key of `recorded_configs()`.
        recorded: the arrays in OUTPUTS.
    """
    text = bytes(recorded[f"{name}/cfg"]).decode()
    with tempfile.TemporaryDirectory() as folder:
        path = save(Path(folder) / "w.pth", state_of(name, recorded), cfg=text)
        model = detlite.load_checkpoint(path, PLAIN).model
    total = DetectionDifference()
    for number, pixels in enumerate(make_images()):
        prefix, size = f"{name}/{number}/", pixels.shape[:2]
        expected: dict[str, Any] = {
            "boxes": torch.from_numpy(recorded[f"{prefix}bboxes"]),
            "scores": torch.from_numpy(recorded[f"{prefix}scores"]),
            "labels": torch.from_numpy(recorded[f"{prefix}labels"]) + 1,
        }
        if f"{prefix}masks" in recorded:
            count = len(expected["boxes"]) * np.prod(size)
            masks = np.unpackbits(recorded[f"{prefix}masks"], count=count).reshape(-1, *size)
            expected["rles"] = [encode_bitmap(mask) for mask in masks]
        image = torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
        resized = resize_shortest(image, 128, 213, model.convention.resize)
        [detections] = model.detect([resized])
        result = in_original_image(model, as_dict(detections), tuple(resized.shape[1:]), size)
        total.merge(compare(result, expected))
    return total
