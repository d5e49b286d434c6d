"""Instance masks in their three forms: polygons, run lengths (COCO RLE) and bitmaps.

A fourth, the M x M probabilities that a mask head predicts for a box, is pasted into an image here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pycocotools import mask as rle_codec
from torch import Tensor

Segmentation = list[Any] | dict[str, Any]
RLE = dict[str, Any]  # {"size": [height, width], "counts": str}


def to_bitmap(segmentation: Segmentation, height: int, width: int) -> np.ndarray:
    """A COCO segmentation as a bitmap uint8 [height, width] of 0 and 1.

    Args:
        segmentation: polygons [[x1, y1, x2, y2, ...], ...] whose union is the mask, or an RLE
            whose counts are a list or a (compressed) string.
        height, width: the image's size; an RLE must have the same.
    """
    if isinstance(segmentation, dict):
        if isinstance(segmentation["counts"], list):
            segmentation = rle_codec.frPyObjects(segmentation, height, width)
        return rle_codec.decode(segmentation)
    parts = rle_codec.frPyObjects(segmentation, height, width)
    return rle_codec.decode(rle_codec.merge(parts))


def encode_bitmap(bitmap: np.ndarray) -> RLE:
    """A bitmap [H, W] (bool or 0/1) as a compressed RLE with string counts, ready for json."""
    rle = rle_codec.encode(np.asfortranarray(bitmap, dtype=np.uint8))
    return {"size": list(rle["size"]), "counts": rle["counts"].decode("ascii")}


def paste_masks(
    probs: Tensor, boxes: Tensor, size: tuple[int, int], whole_pixels: bool = False
) -> Tensor:
    """Resamples box masks into the image by bilinear interpolation.

    A mask's M x M cells tile its box; a pixel takes the value interpolated between cell centres at
    the pixel's centre, with zeros around the mask.

    Args:
        probs: [N, M, M] probabilities.
        boxes: [N, 4] xyxy boxes in pixels of the image.
        size: (height, width) of the image.
        whole_pixels: the older way of torchvision and maskrcnn-benchmark: the mask grows by a ring
            of zeros, and the box that this fills is truncated to whole pixels, the last inside.

    Returns:
        float32 [N, height, width].
    """
    pasted = torch.zeros((len(probs), *size), dtype=torch.float32, device=probs.device)
    for index, (prob, box) in enumerate(zip(probs, boxes, strict=True)):
        window, (top, left) = _paste_window(prob, box, size, whole_pixels)
        height, width = window.shape
        pasted[index, top : top + height, left : left + width] = window
    return pasted


def paste_masks_to_rle(
    probs: Tensor,
    boxes: Tensor,
    size: tuple[int, int],
    threshold: float = 0.5,
    whole_pixels: bool = False,
) -> list[RLE]:
    """`paste_masks`, thresholded (probability >= threshold) and encoded one mask at a time.

    Holds one image-sized bitmap, however many masks there are.
    """
    probs, boxes = probs.float().cpu(), boxes.float().cpu()
    bitmap = np.zeros(size, dtype=np.uint8, order="F")
    rles = []
    for prob, box in zip(probs, boxes, strict=True):
        window, (top, left) = _paste_window(prob, box, size, whole_pixels)
        rows = slice(top, top + window.shape[0])
        columns = slice(left, left + window.shape[1])
        bitmap[rows, columns] = (window >= threshold).numpy()
        rles.append(encode_bitmap(bitmap))
        bitmap[rows, columns] = 0
    return rles


def _paste_window(
    prob: Tensor, box: Tensor, size: tuple[int, int], whole_pixels: bool
) -> tuple[Tensor, tuple[int, int]]:
    """The part of the image that a mask reaches, and its top left corner.

    Bilinear interpolation is separable: row weights x mask x column weights.
    """
    if whole_pixels:
        box = _whole_pixel_box(box, prob.shape[-1])
    x1, y1, x2, y2 = box.tolist()
    rows, top = _hat_weights(y1, y2, prob.shape[0], size[0], prob.device)
    columns, left = _hat_weights(x1, x2, prob.shape[1], size[1], prob.device)
    with torch.autocast(prob.device.type, enabled=False):  # half precision would move edges
        return rows @ prob.float() @ columns.T, (top, left)


def _whole_pixel_box(box: Tensor, cells: int) -> Tensor:
    """The box that the mask fills when it and a ring of zeros around it fill whole pixels."""
    centre, half = (box[:2] + box[2:]) / 2, (box[2:] - box[:2]) / 2
    grown = half * ((cells + 2) / cells)
    low, high = (centre - grown).trunc(), (centre + grown).trunc() + 1
    side = (high - low).clamp(min=1)
    return torch.cat([low + side / (cells + 2), low + side * ((cells + 1) / (cells + 2))])


def _hat_weights(
    low: float, high: float, cells: int, limit: int, device: torch.device
) -> tuple[Tensor, int]:
    """Weights [pixels, cells] of each cell in each reached pixel along one axis, and the first."""
    cell = max(high - low, 1e-6) / cells
    # A pixel's centre must lie within one cell of a cell centre, hence half a cell off the box.
    start = min(max(int(low - 0.5 * cell - 0.5), 0), limit)
    stop = min(max(int(high + 0.5 * cell + 0.5) + 1, start), limit)
    centres = torch.arange(start, stop, dtype=torch.float32, device=device) + 0.5
    position = (centres - low) / cell - 0.5
    index = torch.arange(cells, dtype=torch.float32, device=device)
    return (1 - (position[:, None] - index[None, :]).abs()).clamp(min=0), start
