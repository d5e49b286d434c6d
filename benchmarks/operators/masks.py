"""Cases of mask targets, pasted masks, and keypoints from heatmaps."""

from collections.abc import Iterator

import numpy as np
import torch
from pycocotools import mask as rle_codec
from torch import Tensor
from torch.nn import functional as F
from torchvision.models.detection import roi_heads

from detlite import ops
from detlite.structures.masks.packed import PackedMasks

from .case import IMAGE, Case, jitter_boxes, random_boxes


def polygons(boxes: Tensor, corners: int) -> list[Tensor]:
    """Return a star-shaped polygon (x, y, x, y, ...) in each box, float64."""
    angles = torch.arange(corners, dtype=torch.float64) * (2 * torch.pi / corners)
    radii = 0.3 + 0.2 * torch.rand(len(boxes), corners, 1, dtype=torch.float64)
    offsets = radii * torch.stack([angles.cos(), angles.sin()], dim=1)
    low, high = boxes.double()[:, None].split(2, dim=2)
    return list((low + (0.5 + offsets) * (high - low)).flatten(1))


def crop_cases(device: str) -> Iterator[Case]:
    """Yield cases of mask targets for 256 boxes near 30 objects.

    Polygons with 40 corners are compared with detectron2's method, one call of pycocotools per box,
    and run lengths with torchvision's method, cropping bitmaps.
    """
    objects = random_boxes(30, 20, 400, "cpu")
    index = torch.randint(30, (256,))
    boxes = jitter_boxes(objects[index]).to(device)
    index = index.to(device)
    outlines = [polygon.numpy() for polygon in polygons(objects, 40)]

    def rasterize() -> list[np.ndarray]:
        masks = []
        for i, box in zip(index.tolist(), boxes.double().cpu().numpy(), strict=True):
            scale = 28 / (box[2:] - box[:2])
            polygon = (outlines[i].reshape(-1, 2) - box[:2]) * scale
            rle = rle_codec.merge(rle_codec.frPyObjects([polygon.ravel()], 28, 28))
            masks.append(rle_codec.decode(rle))
        return masks

    segmentations = [[polygon.tolist()] for polygon in outlines]
    polygon_masks, rle_masks = (
        PackedMasks.from_segmentations(segmentations, *IMAGE, as_rle).to(device)
        for as_rle in (False, True)
    )
    yield Case(
        "crop_256_polygons",
        lambda: ops.crop_masks(*polygon_masks.tensors(), index, boxes, 28, False),
        rasterize,
        dtype="float64",
    )
    bitmaps = rle_masks.bitmaps(*IMAGE).to(device)
    yield Case(
        "crop_256_rle",
        lambda: ops.crop_masks(*rle_masks.tensors(), index, boxes, 28, True),
        lambda: roi_heads.project_masks_on_boxes(bitmaps, boxes, index, 28),
        dtype="float64",
    )


def paste_cases(device: str) -> Iterator[Case]:
    """Yield a case that pastes 100 smooth masks of 28 x 28 and encodes them as run lengths."""
    boxes = random_boxes(100, 20, 400, device)
    logits = F.interpolate(torch.randn(100, 1, 5, 5, device=device), (28, 28), mode="bicubic")
    probs = (4 * logits + 1).sigmoid()

    def reference() -> list[dict[str, object]]:
        pasted = roi_heads.paste_masks_in_image(probs, boxes, IMAGE)[:, 0] >= 0.5
        return [rle_codec.encode(np.asfortranarray(m)) for m in pasted.byte().cpu().numpy()]

    yield Case("paste_100_rle", lambda: ops.paste_masks(probs[:, 0], boxes, IMAGE), reference)


def keypoint_cases(device: str) -> Iterator[Case]:
    """Yield a case of 17 heatmaps of 56 x 56 for each of 20 boxes of 20 to 400 pixels."""
    boxes = random_boxes(20, 20, 400, device)
    maps = torch.randn(20, 17, 56, 56, device=device)
    yield Case(
        "heatmap_peaks_20x17",
        lambda: ops.heatmap_peaks(maps, boxes),
        lambda: roi_heads.heatmaps_to_keypoints(maps, boxes),
    )
