"""Masks of one image: cut to a window, placed in a larger one, hidden in part, for augmentation.

Polygons stay polygons wherever they can; run lengths are read anew at the pixels of the result.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .packed import PackedMasks, pack_pieces
from .rle import read_frame, toggles_of_bitmap, used_columns

# Pixels around a window within which polygons are kept: where they are cut off, edges run along
# the cut, which must not be seen.
_MARGIN = 8


def cut_masks(masks: PackedMasks, top: int, left: int, height: int, width: int) -> PackedMasks:
    """The masks in a window of their image, which may reach beyond it.

    Args:
        masks: of one image, of any size.
        top, left: the window's first row and column in the image, negative where it begins outside.
        height, width: its size in pixels.

    Returns:
        The same instances in the window's frame. Those that lie outside are empty.
    """
    pieces, is_rle = [], []
    for own, frame in masks.pieces_and_frames():
        is_rle.append(frame[0] > 0)
        if is_rle[-1]:
            bottom, right = min(top + height, frame[4]), min(left + width, frame[5])
            seen = read_frame(own[0], frame, (top, left, bottom, right))
            used = used_columns(seen)
            bitmap = np.zeros((height, width), np.uint8)
            bitmap[: bottom - top, used] = seen[:, used]
            pieces.append([toggles_of_bitmap(bitmap)])
        else:
            rings = (clip_ring(ring.reshape(-1, 2) - (left, top), height, width, _MARGIN) for ring in own)
            pieces.append([ring.reshape(-1) for ring in rings if len(ring) >= 3])
    return pack_pieces(pieces, is_rle, height, width)


def place_masks(
    masks: PackedMasks, size: tuple[int, int], top: int, left: int, whole: tuple[int, int]
) -> PackedMasks:
    """The masks of an image that becomes a part of a larger one.

    Args:
        masks: of one image.
        size: its (height, width).
        top, left: where its first pixel comes to lie in the larger one.
        whole: (height, width) of that.

    Returns:
        The same instances. Polygons that reach out of their image become run lengths, as what they
        would show there belongs to other images.
    """
    own_pieces, place = [*masks.pieces_and_frames()], np.array([left, top])
    is_rle = [frame[0] > 0 or _reach_out(own, *size) for own, frame in own_pieces]
    drawn = masks.select(torch.tensor(is_rle, dtype=torch.bool)).each_bitmap(*size)
    pieces = []
    for (own, _), as_runs in zip(own_pieces, is_rle, strict=True):
        if as_runs:
            bitmap = np.zeros(whole, np.uint8)
            bitmap[top : top + size[0], left : left + size[1]] = next(drawn)
            pieces.append([toggles_of_bitmap(bitmap)])
        else:
            pieces.append([(ring.reshape(-1, 2) + place).reshape(-1) for ring in own])
    return pack_pieces(pieces, is_rle, *whole)


def hide_masks(masks: PackedMasks, hidden: np.ndarray) -> tuple[PackedMasks, Tensor]:
    """The masks without the pixels that something else hides.

    Args:
        masks: of one image.
        hidden: bool [H, W], over the image.

    Returns:
        The masks, as run lengths where anything was hidden, and bool [I]: where it was.
    """
    pieces, is_rle, touched = [], [], []
    bitmaps = masks.each_bitmap(*hidden.shape)
    for (own, frame), bitmap in zip(masks.pieces_and_frames(), bitmaps, strict=True):
        used = used_columns(bitmap)
        below = (bitmap[:, used] > 0) & hidden[:, used]
        touched.append(bool(below.any()))
        bitmap[:, used][below] = 0
        # One that was resized or flipped is read anew as well: `pack_pieces` takes it as it is.
        is_rle.append(touched[-1] or frame[0] > 0)
        pieces.append([toggles_of_bitmap(bitmap)] if is_rle[-1] else own)
    return pack_pieces(pieces, is_rle, *hidden.shape), torch.tensor(touched, dtype=torch.bool)


def visible_boxes(masks: PackedMasks, height: int, width: int) -> Tensor:
    """The boxes float32 [I, 4] xyxy around the pixels of masks of one image; all 0 without any."""
    boxes = torch.zeros(len(masks), 4)
    for index, bitmap in enumerate(masks.each_bitmap(height, width)):
        columns = used_columns(bitmap)
        rows = used_columns(bitmap[:, columns].T)
        boxes[index] = torch.tensor([columns.start, rows.start, columns.stop, rows.stop])
    return boxes


def _reach_out(rings: Sequence[np.ndarray], height: int, width: int) -> bool:
    """Whether rings [2 P] leave an image of that size."""
    corners = np.concatenate([np.empty(0), *rings]).reshape(-1, 2)
    return bool((corners < 0).any() or (corners > (width, height)).any())


def clip_ring(ring: np.ndarray, height: int, width: int, margin: float) -> np.ndarray:
    """A ring [P, 2] of (x, y) cut to a window and a margin around it (Sutherland and Hodgman)."""
    limits: Sequence[tuple[int, float, float]] = (
        (0, 1.0, margin),
        (1, 1.0, margin),
        (0, -1.0, width + margin),
        (1, -1.0, height + margin),
    )
    for axis, sign, offset in limits:
        inside = sign * ring[:, axis] + offset  # how far
        if (inside >= 0).all():
            continue
        following, next_inside = np.roll(ring, -1, axis=0), np.roll(inside, -1)
        crosses = (inside >= 0) != (next_inside >= 0)
        step = np.divide(inside, inside - next_inside, out=np.zeros_like(inside), where=crosses)
        crossing = ring + step[:, None] * (following - ring)
        # Each corner that is inside, and after it where its edge crosses.
        corners = np.stack([ring, crossing], axis=1).reshape(-1, 2)
        ring = corners[np.stack([inside >= 0, crosses], axis=1).reshape(-1)]
    return ring
