"""Generated pictures with objects, as detlite and torchvision take them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.operators.case import boxes_between
from benchmarks.operators.masks import polygons
from detlite.structures.masks.packed import PackedMasks

Batch = tuple[list[Tensor], list[dict[str, Any]]]


def pictures(count: int, height: int, width: int) -> list[Tensor]:
    """Blurred noise, uint8 [3, height, width] each."""
    coarse = 255 * torch.rand(count, 3, height // 16 + 1, width // 16 + 1)
    return list(F.interpolate(coarse, (height, width), mode="bilinear").byte())


def training_batch(count: int, height: int, width: int, objects: int, classes: int) -> Batch:
    """Pictures with so many stars of 40 corners in each, 16 to 400 pixels wide.

    Args:
        classes: with background; labels are 1..classes - 1.

    Returns:
        Images and targets as `DetectionModel.forward` takes them, masks as run lengths.
    """
    targets = []
    for index in range(count):
        boxes = boxes_between(objects, 16, min(400, height, width), "cpu", (height, width))
        outlines = [[polygon.tolist()] for polygon in polygons(boxes, 40)]
        masks = PackedMasks.from_segmentations(outlines, height, width, as_runs=True)
        labels = torch.randint(1, classes, (objects,))
        targets.append({"boxes": boxes, "labels": labels, "masks": masks, "image_id": index})
    return pictures(count, height, width), targets


def for_torchvision(batch: Batch, device: str) -> Batch:
    """The same as torchvision takes it: float images, and a bitmap for each object."""
    images, targets = batch
    return (
        [(image / 255).to(device) for image in images],
        [
            {
                "boxes": target["boxes"].to(device),
                "labels": target["labels"].to(device),
                "masks": target["masks"].bitmaps(*image.shape[1:]).to(device),
            }
            for image, target in zip(images, targets, strict=True)
        ],
    )
