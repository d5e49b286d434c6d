"""What mmdetection said of narrow models, and ours for the same weights."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import detlite
from detlite.data.transforms.resize import resize_shortest
from detlite.ops import paste_masks
from detlite.structures import boxes as box_ops
from detlite.structures.masks.formats import encode_bitmap
from detlite.structures.masks.pasting import paste_boxes
from tests.conversion.detection_differences import Difference, compare
from tests.conversion.mmdetection.synthetic_models import pictures, weights

PLAIN = ["MODEL.DEVICE", "cpu", "TEST.OPTIMIZE", False]


def state_of(name: str, recorded: Any) -> dict[str, torch.Tensor]:
    """The weights of a model, by mmdetection's names."""
    return weights(json.loads(bytes(recorded[f"{name}/shapes"])), "caffe" in name)


def save(path: Path, state: dict[str, torch.Tensor], **meta: Any) -> Path:
    """Writes a file as mmdetection publishes it."""
    torch.save({"meta": meta, "state_dict": state}, path)
    return path


def compare_recorded(name: str, recorded: Any) -> Difference:
    """Detections in both pictures, end to end, of a file with the config that mmdetection wrote.

    Args:
        name: one of `mmdetection_models.CONFIGS`.
        recorded: the arrays of `mmdetection_models.OUTPUTS`.
    """
    text = bytes(recorded[f"{name}/cfg"]).decode()
    with tempfile.TemporaryDirectory() as folder:
        path = save(Path(folder) / "w.pth", state_of(name, recorded), cfg=text)
        model = detlite.load_checkpoint(path, PLAIN).model
    convention, total = model.convention, Difference()
    for number, picture in enumerate(pictures()):
        prefix = f"{name}/{number}/"
        theirs: dict[str, Any] = {
            "boxes": torch.from_numpy(recorded[f"{prefix}bboxes"]),
            "scores": torch.from_numpy(recorded[f"{prefix}scores"]),
            "labels": torch.from_numpy(recorded[f"{prefix}labels"]) + 1,
        }
        image = torch.from_numpy(picture).permute(2, 0, 1).contiguous()
        resized = resize_shortest(image, 128, 213, convention.resize)
        [found] = model.detect([resized])
        size, net = (image.shape[1], image.shape[2]), (resized.shape[1], resized.shape[2])
        boxes = box_ops.rescale(found.boxes, net, size, convention)
        ours: dict[str, Any] = {"boxes": boxes, "scores": found.scores, "labels": found.labels}
        if found.mask_probs is not None:
            bits = np.unpackbits(
                recorded[f"{prefix}masks"], count=len(theirs["boxes"]) * np.prod(size)
            )
            theirs["rles"] = [encode_bitmap(mask) for mask in bits.reshape(-1, *size)]
            ours["rles"] = paste_masks(
                found.mask_probs,
                paste_boxes(boxes, found.mask_probs.shape[-1], convention),
                size,
                model.mask_threshold,
            )
        total.merge(compare(ours, theirs))
    return total
