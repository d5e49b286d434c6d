"""Conversion between the formats of instance masks: polygons, run lengths (COCO RLE), bitmaps."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from pycocotools import mask as rle_codec

from .rle import draw_rle

Segmentation = list[Any] | dict[str, Any]
MAX_OUTLINE = 1 << 24  # pixels of a polygon; pycocotools needs up to a hundred bytes for each
RLE = dict[str, Any]  # {"size": [height, width], "counts": str}


def to_bitmap(segmentation: Any, height: int, width: int) -> np.ndarray:
    """Convert a COCO segmentation to a bitmap uint8 `[height, width]` of 0 and 1.

    The segmentation is polygons [[x1, y1, x2, y2, ...], ...] whose union is the mask, or an RLE of
    the image's size with counts as a list or a compressed string. A bitmap is returned as an array.

    Raises:
        ValueError: the RLE has another size; see also `polygons_to_rle` and `draw_rle`.
    """
    if isinstance(segmentation, dict):
        if list(segmentation["size"]) != [height, width]:
            raise ValueError(f"an RLE of size {segmentation['size']}, not {[height, width]}")
        return draw_rle(segmentation["counts"], height, width)
    if hasattr(segmentation, "shape"):
        return np.asarray(segmentation)
    return rle_codec.decode(polygons_to_rle(segmentation, height, width))


def outline_length(corners: np.ndarray) -> float:
    """Return the number of pixels along the closed outline of a polygon float64 [K, 2]."""
    return float(np.abs(corners - np.roll(corners, 1, axis=0)).max(axis=1).sum())


def polygons_to_rle(polygons: Sequence[Sequence[float]], height: int, width: int) -> RLE:
    """Rasterize the union of polygons [x1, y1, x2, y2, ...] to an RLE with bytes as counts.

    Raises:
        ValueError: a corner is not finite, or farther outside the image than its longer side (64
            pixels for a smaller image), or an outline is longer than MAX_OUTLINE.
    """
    longest = max(height, width)
    margin = max(longest, 64)
    for polygon in polygons:
        # pycocotools needs memory for each pixel of an edge, and its integers overflow.
        corners = np.asarray(polygon, np.float64)
        if not ((corners >= -margin) & (corners <= longest + margin)).all():
            raise ValueError(
                f"a polygon reaches from {corners.min():g} to {corners.max():g}, too far outside "
                f"an image of {width}x{height}"
            )
        if outline_length(corners.reshape(-1, 2)) > MAX_OUTLINE:
            raise ValueError(f"a polygon has an outline of more than {MAX_OUTLINE} pixels")
    return rle_codec.merge(rle_codec.frPyObjects(list(polygons), height, width))


def encode_bitmap(bitmap: np.ndarray) -> RLE:
    """Encode a bitmap `[H, W]` (bool or 0/1) as a compressed RLE with str counts, for json."""
    rle = rle_codec.encode(np.asfortranarray(bitmap, dtype=np.uint8))
    return {"size": list(rle["size"]), "counts": rle["counts"].decode("ascii")}
