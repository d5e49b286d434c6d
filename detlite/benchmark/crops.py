"""Training targets of a mask head, from the masks of 30 objects."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from pycocotools import mask as rle_codec
from torch import Tensor
from torchvision.models.detection.roi_heads import project_masks_on_boxes

from .. import ops
from ..structures.packed_masks import PackedMasks
from .case import Case, cases
from .inputs import IMAGE, boxes_between

OBJECTS = 30


def _polygons(boxes: Tensor, corners: int) -> list[Tensor]:
    """A star of x, y, x, y, ... about the middle of each box, as annotators draw objects."""
    angles = torch.arange(corners, dtype=torch.float64) * (2 * torch.pi / corners)
    radii = 0.3 + 0.2 * torch.rand(len(boxes), corners, 1, dtype=torch.float64)
    around = radii * torch.stack([angles.cos(), angles.sin()], dim=1)
    low, high = boxes.double()[:, None].split(2, dim=2)
    return list((low + (0.5 + around) * (high - low)).flatten(1))


@cases
def crop_cases(device: str) -> Iterator[Case]:
    """256 boxes near objects: polygons of 40 corners, beside detectron2's way, which asks
    pycocotools for each box; and run lengths, beside torchvision's, which crops bitmaps."""
    height, width = IMAGE
    objects = boxes_between(OBJECTS, 20, 400, "cpu")
    chosen = torch.randint(OBJECTS, (256,))
    sides = (objects[:, 2:] - objects[:, :2]).repeat(1, 2)[chosen]
    boxes = (objects[chosen] + torch.randn(256, 4) / 10 * sides).to(device)
    polygons = _polygons(objects, 40)
    index = chosen.to(device)

    def rasterize() -> list[np.ndarray]:
        masks = []
        for i, box in zip(index.tolist(), boxes.double().cpu().numpy(), strict=True):
            scale = 28 / (box[2:] - box[:2])
            polygon = (polygons[i].numpy().reshape(-1, 2) - box[:2]) * scale
            rle = rle_codec.merge(rle_codec.frPyObjects([polygon.ravel()], 28, 28))
            masks.append(rle_codec.decode(rle))
        return masks

    segmentations = [[polygon.tolist()] for polygon in polygons]
    drawn, encoded = (
        PackedMasks.from_segmentations(segmentations, height, width, as_runs).to(device)
        for as_runs in (False, True)
    )
    yield Case(
        "crop_256_polygons",
        "float64",
        lambda: ops.crop_masks(*drawn.tensors(), index, boxes, 28, False),
        rasterize,
    )

    bitmaps = encoded.bitmaps(height, width).to(device)
    yield Case(
        "crop_256_rle",
        "float64",
        lambda: ops.crop_masks(*encoded.tensors(), index, boxes, 28, True),
        lambda: project_masks_on_boxes(bitmaps, boxes, index, 28),
    )
