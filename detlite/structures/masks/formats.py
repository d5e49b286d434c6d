"""Instance masks in their three forms: polygons, run lengths (COCO RLE) and bitmaps.

A fourth, the M x M probabilities that a mask head predicts for a box, is pasted into an image here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from pycocotools import mask as rle_codec
from torch import Tensor
from torch.nn import functional as F

Segmentation = list[Any] | dict[str, Any]
RLE = dict[str, Any]  # {"size": [height, width], "counts": str}


def to_bitmap(segmentation: Segmentation, height: int, width: int) -> np.ndarray:
    """A COCO segmentation as a bitmap uint8 [height, width] of 0 and 1.

    Args:
        segmentation: polygons [[x1, y1, x2, y2, ...], ...] whose union is the mask, or an RLE
            whose counts are a list or a (compressed) string.
        height, width: the image's size; an RLE must have the same.

    Raises:
        ValueError: see `polygons_to_rle`.
    """
    if isinstance(segmentation, dict):
        if isinstance(segmentation["counts"], list):
            segmentation = rle_codec.frPyObjects(segmentation, height, width)
        return rle_codec.decode(segmentation)
    return rle_codec.decode(polygons_to_rle(segmentation, height, width))


def polygons_to_rle(polygons: Sequence[Sequence[float]], height: int, width: int) -> RLE:
    """The union of polygons [x1, y1, x2, y2, ...] as pycocotools draws it, with bytes as counts.

    Raises:
        ValueError: a corner that is not finite, or farther outside the image than that is long
            (64 pixels outside of a smaller one).
    """
    longest = max(height, width)
    margin = max(longest, 64)
    for polygon in polygons:
        # pycocotools takes memory by the length of an edge, and its integers overflow.
        corners = np.asarray(polygon, np.float64)
        if not ((corners >= -margin) & (corners <= longest + margin)).all():
            raise ValueError(
                f"a polygon reaches from {corners.min():g} to {corners.max():g}, too far out of "
                f"an image of {width}x{height}"
            )
    return rle_codec.merge(rle_codec.frPyObjects(list(polygons), height, width))


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
    ringed = F.pad(probs.float(), (2, 2, 2, 2))
    for image, mask, box in zip(pasted, ringed, boxes.tolist(), strict=True):
        if not all(map(math.isfinite, box)):
            continue
        # Separable, first along the rows, then between them. The operator `paste_masks` repeats
        # these operations in this order, so that it rounds alike.
        x1, y1, x2, y2 = box
        columns, cell, weight = _pixel_taps(x1, x2, probs.shape[2], size[1], probs.device)
        stretched = mask[:, cell] * (1 - weight) + mask[:, cell + 1] * weight
        rows, cell, weight = _pixel_taps(y1, y2, probs.shape[1], size[0], probs.device)
        weight = weight[:, None]
        image[rows, columns] = stretched[cell] * (1 - weight) + stretched[cell + 1] * weight
    return pasted


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
) -> tuple[slice, Tensor, Tensor]:
    """Along one axis the pixels that a mask within two rings of zeros reaches, for each the cell
    whose centre comes before its own, and the weight of the next cell."""
    cell = max(high - low, 1e-6) / cells
    # A pixel's centre must lie within one cell of a cell centre: half a cell off the box.
    start = min(max(int(low - 0.5 * cell - 0.5), 0), limit)
    stop = min(max(int(high + 0.5 * cell + 0.5) + 1, start), limit)
    centres = torch.arange(start, stop, dtype=torch.float32, device=device) + 0.5
    position = (centres - low) / torch.tensor(cell, dtype=torch.float32) - 0.5
    index = position.floor()
    return slice(start, stop), index.clamp(-2, cells).long() + 2, position - index
