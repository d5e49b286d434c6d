"""Recorded outputs of mmdetection for narrow models, compared with converted models."""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import detlite
from detlite.data.transforms.resize import resize_shortest
from detlite.structures.masks.formats import encode_bitmap
from tests.conversion.detection_differences import (
    DetectionDifference,
    as_dict,
    compare,
    in_original_image,
)
from tests.conversion.mmdetection.synthetic_models import make_images, weights

PLAIN = ["MODEL.DEVICE", "cpu", "TEST.OPTIMIZE", False]


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
        name: a key of `synthetic_models.CONFIGS`.
        recorded: the arrays in `synthetic_models.OUTPUTS`.
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
