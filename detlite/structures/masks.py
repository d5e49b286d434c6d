"""Instance masks in their three forms: polygons, run lengths (COCO RLE) and bitmaps.

A fourth, the M x M probabilities that a mask head predicts for a box, is pasted into an image here.
"""

from __future__ import annotations

import math
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


def paste_probabilities(probs: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Resamples box masks into the image by bilinear interpolation.

    A mask's M x M cells tile its box; a pixel takes the value interpolated between cell centres at
    the pixel's centre, with zeros around the mask. A box that is not finite leaves zeros.

    Args:
        probs: [N, M, M] probabilities.
        boxes: [N, 4] xyxy boxes in pixels of the image.
        size: (height, width) of the image.

    Returns:
        float32 [N, height, width].
    """
    pasted = torch.zeros((len(probs), *size), dtype=torch.float32, device=probs.device)
    for index, (prob, box) in enumerate(zip(probs, boxes, strict=True)):
        window, (top, left) = _paste_window(prob, box, size)
        height, width = window.shape
        pasted[index, top : top + height, left : left + width] = window
    return pasted


def _paste_window(
    prob: Tensor, box: Tensor, size: tuple[int, int]
) -> tuple[Tensor, tuple[int, int]]:
    """The part of the image that a mask reaches, and its top left corner.

    Bilinear interpolation is separable: first along the rows, then between them. The operator
    `paste_masks` repeats these operations in this order, so that it rounds alike.
    """
    x1, y1, x2, y2 = box.tolist()
    left, columns = _pixel_taps(x1, x2, prob.shape[1], size[1], prob.device)
    top, rows = _pixel_taps(y1, y2, prob.shape[0], size[0], prob.device)
    (low, low_weight), (high, high_weight) = columns
    prob = prob.float()
    stretched = prob[:, low] * low_weight + prob[:, high] * high_weight
    (low, low_weight), (high, high_weight) = rows
    window = stretched[low] * low_weight[:, None] + stretched[high] * high_weight[:, None]
    return window, (top, left)


def whole_pixel_boxes(boxes: Tensor, cells: int) -> Tensor:
    """The boxes that masks fill in the older way of torchvision and maskrcnn-benchmark.

    A mask grows by a ring of zeros; the box that this fills is truncated to whole pixels, the last
    inside.

    Args:
        boxes: [N, 4] that the masks are of.
        cells: M.
    """
    low, high = boxes[:, :2], boxes[:, 2:]
    centre, half = (low + high) / 2, (high - low) / 2
    grown = half * ((cells + 2) / cells)
    low, high = (centre - grown).trunc(), (centre + grown).trunc() + 1
    side = (high - low).clamp(min=1)
    return torch.cat([low + side / (cells + 2), low + side * ((cells + 1) / (cells + 2))], dim=1)


def _pixel_taps(
    low: float, high: float, cells: int, limit: int, device: torch.device
) -> tuple[int, list[tuple[Tensor, Tensor]]]:
    """Along one axis the first pixel that a mask reaches and, for that and each further one, the
    two cells between whose centres its own lies, each with its weight."""
    if not (math.isfinite(low) and math.isfinite(high)):
        low, high, limit = 0.0, 0.0, 0  # reaches nothing
    cell = max(high - low, 1e-6) / cells
    # A pixel's centre must lie within one cell of a cell centre: half a cell off the box.
    start = min(max(int(low - 0.5 * cell - 0.5), 0), limit)
    stop = min(max(int(high + 0.5 * cell + 0.5) + 1, start), limit)
    centres = torch.arange(start, stop, dtype=torch.float32, device=device) + 0.5
    position = (centres - low) / torch.tensor(cell, dtype=torch.float32) - 0.5
    index = position.floor()
    fraction = position - index
    taps = []
    for i, weight in ((index, 1 - fraction), (index + 1, fraction)):
        inside = (i >= 0) & (i < cells)
        taps.append((i.clamp(0, cells - 1).long(), torch.where(inside, weight, 0)))
    return start, taps
