"""Instance masks in their three forms: polygons, run lengths (COCO RLE) and bitmaps.

A fourth, the M x M probabilities that a mask head predicts for a box, is pasted into an image here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pycocotools import mask as rle_codec

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
