"""Edit the masks of one image for augmentation: crop, place in a larger image, occlude.

Polygons stay polygons where possible; run lengths are resampled at the pixels of the result.
"""

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .packed import PackedMasks, Rings, draw_pieces, pack
from .rle import boundaries_of_bitmap, decode_frame, tight_bounds, used_columns

# Clipping adds edges along the clipping border, which must be outside the window.
_MARGIN = 8


def crop_to_window(masks: PackedMasks, top: int, left: int, height: int, width: int) -> PackedMasks:
    """Crop the masks of one image to a window, which may exceed the image.

    `top` and `left` are the first row and column of the window in the image; they may be negative.
    Instances outside the window become empty.
    """
    cropped: list[Rings | np.ndarray] = []
    for pieces, frame in masks.pieces_and_frames():
        if frame[0]:
            bottom, right = min(top + height, frame[4]), min(left + width, frame[5])
            visible = decode_frame(pieces[0], frame, (top, left, bottom, right))
            used = used_columns(visible)
            bitmap = np.zeros((height, width), np.uint8)
            bitmap[: bottom - top, used] = visible[:, used]
            cropped.append(boundaries_of_bitmap(bitmap))
        else:
            rings = (
                clip_ring(ring.reshape(-1, 2) - (left, top), height, width, _MARGIN)
                for ring in pieces
            )
            cropped.append([ring for ring in rings if len(ring) >= 3])
    return pack(cropped, height, width)


def place_masks(masks: PackedMasks, size: tuple[int, int], whole: tuple[int, int]) -> PackedMasks:
    """Place the masks of an image of (height, width) `size` in the corner of one of size `whole`.

    Polygons that exceed their image become run lengths, because the area beyond its border belongs
    to other images.
    """
    placed: list[Rings | np.ndarray] = []
    for pieces, frame in masks.pieces_and_frames():
        rings = [] if frame[0] else [ring.reshape(-1, 2) for ring in pieces]
        if frame[0] or any(((ring < 0) | (ring > size[::-1])).any() for ring in rings):
            bitmap = np.zeros(whole, np.uint8)
            bitmap[: size[0], : size[1]] = draw_pieces(pieces, frame, *size)
            placed.append(boundaries_of_bitmap(bitmap))
        else:
            placed.append(rings)
    return pack(placed, *whole)


def occlude_masks(masks: PackedMasks, hidden: np.ndarray) -> tuple[PackedMasks, Tensor]:
    """Remove the hidden pixels, bool `[H, W]`, from the masks of one image.

    Returns:
        The masks, as run lengths if occluded, and bool `[I]`, True for the occluded ones.
    """
    visible: list[Rings | np.ndarray] = []
    touched = []
    bitmaps = masks.each_bitmap(*hidden.shape)
    for (pieces, frame), bitmap in zip(masks.pieces_and_frames(), bitmaps, strict=True):
        used = used_columns(bitmap)
        occluded = (bitmap[:, used] > 0) & hidden[:, used]
        touched.append(bool(occluded.any()))
        bitmap[:, used][occluded] = 0
        # `pack` expects run lengths in the frame of the image, not resized or flipped.
        visible.append(boundaries_of_bitmap(bitmap) if touched[-1] or frame[0] else pieces)
    return pack(visible, *hidden.shape), torch.tensor(touched, dtype=torch.bool)


def warp_masks(
    masks: PackedMasks,
    matrix: np.ndarray,
    shift: np.ndarray,
    size: tuple[int, int],
    new_size: tuple[int, int],
) -> tuple[PackedMasks, Tensor]:
    """Move each point p of the masks of an image of `size` to `matrix @ p + shift`.

    Returns:
        The masks of an image of `new_size`, and their bounding boxes float32 `[I, 4]` (xyxy), which
        exceed the image where polygons do.
    """
    inverse = np.linalg.inv(matrix)
    coefficients = np.column_stack([inverse, -inverse @ shift]).ravel().tolist()
    moved: list[Rings | np.ndarray] = []
    boxes = torch.zeros(len(masks), 4)
    for index, (pieces, frame) in enumerate(masks.pieces_and_frames()):
        if frame[0]:
            image = Image.fromarray(draw_pieces(pieces, frame, *size)).transform(
                new_size[::-1], Image.Transform.AFFINE, coefficients, Image.Resampling.NEAREST
            )
            bitmap = np.asarray(image)
            moved.append(boundaries_of_bitmap(bitmap))
            boxes[index] = torch.tensor(tight_bounds(bitmap))
        else:
            rings = [ring.reshape(-1, 2) @ matrix.T + shift for ring in pieces]
            moved.append(rings)
            if rings:
                points = np.concatenate(rings)
                boxes[index] = torch.from_numpy(np.concatenate([points.min(0), points.max(0)]))
    return pack(moved, *new_size), boxes


def masks_to_boxes(masks: PackedMasks, height: int, width: int) -> Tensor:
    """Return the bounding boxes float32 `[I, 4]` (xyxy) of masks of one image; 0 if empty."""
    boxes = torch.zeros(len(masks), 4)
    for index, bitmap in enumerate(masks.each_bitmap(height, width)):
        boxes[index] = torch.tensor(tight_bounds(bitmap))
    return boxes


def clip_ring(ring: np.ndarray, height: int, width: int, margin: float) -> np.ndarray:
    """Clip a ring `[P, 2]` of (x, y) to a window and a margin (Sutherland-Hodgman)."""
    far = width + margin, height + margin
    for axis, sign in ((0, 1.0), (1, 1.0), (0, -1.0), (1, -1.0)):
        inside = sign * ring[:, axis] + (margin if sign > 0 else far[axis])  # signed distance
        if (inside >= 0).all():
            continue
        following, next_inside = np.roll(ring, -1, axis=0), np.roll(inside, -1)
        crosses = (inside >= 0) != (next_inside >= 0)
        step = np.divide(inside, inside - next_inside, out=np.zeros_like(inside), where=crosses)
        crossing = ring + step[:, None] * (following - ring)
        # Keep each corner inside, followed by the crossing of its edge, if any.
        corners = np.stack([ring, crossing], axis=1).reshape(-1, 2)
        ring = corners[np.stack([inside >= 0, crosses], axis=1).reshape(-1)]
    return ring
