"""Generated images and targets in the formats of detlite and torchvision."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.operators.case import random_boxes
from benchmarks.operators.masks import polygons
from detlite.structures.masks.packed import PackedMasks

Batch = tuple[list[Tensor], list[dict[str, Any]]]


def generate_images(count: int, height: int, width: int) -> list[Tensor]:
    """Return images of smooth noise, uint8 [3, height, width]."""
    coarse = 255 * torch.rand(count, 3, height // 16 + 1, width // 16 + 1)
    return list(F.interpolate(coarse, (height, width), mode="bilinear").byte())


def training_batch(count: int, height: int, width: int, objects: int, classes: int) -> Batch:
    """Return images and targets for `DetectionModel.forward`, with masks as run lengths.

    The objects are stars with 40 corners and sides of 16 to 400 pixels.

    Args:
        count: number of images.
        height, width: size of the images.
        objects: number of objects per image.
        classes: number of classes including background; labels are in 1..classes - 1.
    """
    targets = []
    for index in range(count):
        boxes = random_boxes(objects, 16, min(400, height, width), "cpu", (height, width))
        outlines = [[polygon.tolist()] for polygon in polygons(boxes, 40)]
        masks = PackedMasks.from_segmentations(outlines, height, width, as_rle=True)
        labels = torch.randint(1, classes, (objects,))
        targets.append({"boxes": boxes, "labels": labels, "masks": masks, "image_id": index})
    return generate_images(count, height, width), targets


def to_torchvision_batch(batch: Batch, device: str) -> Batch:
    """Convert a batch to torchvision's format: float images, and a bitmap for each object."""
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


def pin_memory(batch: Batch) -> Batch:
    """Pin the images, as the loader does, so that copies to a GPU are asynchronous."""
    images, targets = batch
    return [image.pin_memory() for image in images], targets
