"""Mask cropping and pasting in pycocotools, NumPy and torchvision's RoIAlign, one box at a time."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from pycocotools import mask as rle_codec
from torch import Tensor
from torch.nn import functional as F

from detlite.structures.masks.editing import clip_ring
from detlite.structures.masks.packed import PackedMasks
from detlite.structures.masks.pasting import paste_probabilities
from detlite.structures.masks.rle import decode_frame

from .checks import check, check_dtype, check_floating, check_same_device, check_shape
from .roi_align import roi_align_forward

_MAX_RESOLUTION = 256
# In pixels: of a frame, and of the network's input.
_MAX_SOURCE, _MAX_TARGET = 1 << 30, 1 << 15
# Cells around a box beyond which polygons are clipped: pycocotools walks edges point by point.
_MARGIN = 1 << 17
_MAX_SIDE, _MAX_PIXELS = (1 << 30) - 1, (1 << 32) - 1


def crop_masks(
    values: Tensor,
    pieces: Tensor,
    instances: Tensor,
    frames: Tensor,
    index: Tensor,
    boxes: Tensor,
    resolution: int,
    soft: bool,
) -> Tensor:
    """Implement `crop_masks`. All tensors are on the CPU."""
    masks = PackedMasks(values, pieces, instances, frames)
    _check_crop(masks, index, boxes, resolution, soft)
    packed = list(masks.pieces_and_frames())
    boxes = boxes.float()
    crops = boxes.new_zeros(len(boxes), resolution, resolution)
    for crop, box, instance in zip(crops, boxes, index.tolist(), strict=True):
        own, frame = packed[instance] if instance >= 0 else ([], [])
        if not own:
            continue
        if frame[0] == 0:
            crop.copy_(torch.from_numpy(_draw_polygons(own, box.numpy(), resolution)))
        elif box.isfinite().all():
            crop.copy_(_crop_runs(own[0], frame, box, resolution, soft))
    return crops


def _draw_polygons(rings: Sequence[np.ndarray], box: np.ndarray, cells: int) -> np.ndarray:
    """Rasterize the union of rings on the cells of a box, uint8 `[M, M]`.

    This is detectron2's `rasterize_polygons_within_box`, with its types.
    """
    with np.errstate(all="ignore"):
        sides = box[2:] - box[:2]
        scale = np.where(sides < 0.1, cells / 0.1, (np.float32(cells) / sides).astype(np.float64))
        moved = [(ring.reshape(-1, 2) - box[:2].astype(np.float64)) * scale for ring in rings]
    polygons = []
    for ring in moved:
        if not (np.abs(ring) < _MARGIN).all():
            ring = np.nan_to_num(ring, nan=-1e15).clip(-1e15, 1e15)
            ring = clip_ring(ring, cells, cells, _MARGIN)
        if len(ring):
            polygons.append(ring.ravel().tolist())
    if not polygons:
        return np.zeros((cells, cells), np.uint8)
    return rle_codec.decode(rle_codec.merge(rle_codec.frPyObjects(polygons, cells, cells)))


def _crop_runs(
    boundaries: np.ndarray, frame: Sequence[int], box: Tensor, resolution: int, soft: bool
) -> Tensor:
    """Pool the bitmap of run lengths under a box, float32 `[M, M]`."""
    x1, y1, x2, y2 = box.tolist()
    top, bottom = _window(y1, y2, frame[4])
    left, right = _window(x1, x2, frame[5])
    if top >= bottom or left >= right:
        return box.new_zeros(resolution, resolution)
    # Only the pixels under the box are decoded, but RoIAlign gets the whole bitmap: coordinates
    # relative to a part of it would round differently.
    bitmap = torch.zeros(1, 1, *frame[4:])
    window = decode_frame(boundaries, frame, (top, left, bottom, right))
    bitmap[0, 0, top:bottom, left:right] = torch.from_numpy(np.ascontiguousarray(window))
    roi = F.pad(box, (1, 0))[None]
    level = torch.zeros(1, dtype=torch.int64)
    pool = [1.0], resolution, resolution
    crop = roi_align_forward([bitmap], roi, level, *pool, sampling_ratio=0, aligned=not soft)[0, 0]
    return crop if soft else (crop >= 0.5).to(crop.dtype)


def _window(low: float, high: float, size: int) -> tuple[int, int]:
    """Return the pixels that RoIAlign reads along one axis, and at least one more on each side."""
    start = min(max(math.floor(min(low, high)) - 2, 0), size)
    return start, min(max(math.ceil(max(high, low + 1)) + 3, start), size)


def paste_masks_rle(
    probs: Tensor, boxes: Tensor, height: int, width: int, threshold: float
) -> tuple[Tensor, Tensor]:
    """Implement `paste_masks_rle`."""
    _check_paste(probs, boxes, height, width, threshold)
    texts = []
    for prob, box in zip(probs, boxes.float(), strict=True):
        (pasted,) = paste_probabilities(prob[None], box[None], (height, width))
        bitmap = np.asfortranarray((pasted >= threshold).numpy(), np.uint8)
        texts.append(rle_codec.encode(bitmap)["counts"])
    data = np.frombuffer(bytearray().join(texts), np.uint8)
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    return torch.from_numpy(data), torch.from_numpy(ends)


def _check_paste(probs: Tensor, boxes: Tensor, height: int, width: int, threshold: float) -> None:
    op, shape = "paste_masks_rle", list(probs.shape)
    check(len(shape) == 3, f"{op}: probs must have shape [N, M, M], got {shape}")
    check_floating(op, "probs", probs)
    check_shape(op, "boxes", boxes, [shape[0], 4], ", one for each mask")
    check_floating(op, "boxes", boxes)
    check_same_device(op, probs, boxes=boxes)
    names = ("a mask's height", "a mask's width", "height", "width")
    for name, side, least in zip(names, (*shape[1:], height, width), (1, 1, 0, 0), strict=True):
        check(
            least <= side <= _MAX_SIDE,
            f"{op}: {name} must be from {least} to {_MAX_SIDE}, got {side}",
        )
    check(height * width <= _MAX_PIXELS, f"{op}: {height} x {width} are too many pixels")
    check(threshold > 0, f"{op}: threshold must be more than 0, got {threshold}")


def _check_crop(
    masks: PackedMasks, index: Tensor, boxes: Tensor, resolution: int, soft: bool
) -> None:
    op = "crop_masks"
    values, pieces, instances, frames = masks.tensors()
    check(values.dim() == 1, f"{op}: values must have shape [V], got {list(values.shape)}")
    check_dtype(op, "values", values, torch.float64)
    lists = (("pieces", pieces, 1), ("instances", instances, 1), ("index", index, 0))
    for name, tensor, least in lists:
        check(
            tensor.dim() == 1 and len(tensor) >= least,
            f"{op}: {name} must have one dimension and at least {least} elements, "
            f"got {list(tensor.shape)}",
        )
        check_dtype(op, name, tensor, torch.int64)
    check_shape(op, "frames", frames, [len(instances) - 1, 6], ", a row for each of instances")
    check_dtype(op, "frames", frames, torch.int64)
    check_shape(op, "boxes", boxes, [len(index), 4], ", one for each of index")
    check_floating(op, "boxes", boxes)
    check(
        1 <= resolution <= _MAX_RESOLUTION,
        f"{op}: resolution must be from 1 to {_MAX_RESOLUTION}, got {resolution}",
    )
    ends, firsts = pieces.tolist(), instances.tolist()
    _check_offsets(op, "pieces", ends, len(values), "values")
    _check_offsets(op, "instances", firsts, len(pieces) - 1, "pieces")
    for i, ((first, last), frame) in enumerate(zip(pairwise(firsts), frames.tolist(), strict=True)):
        if first < last and frame[0] == 0:
            check(not soft, f"{op}: instance {i} is polygons, and soft masks need run lengths")
            for piece in range(first, last):
                check(
                    (ends[piece + 1] - ends[piece]) % 2 == 0,
                    f"{op}: piece {piece} must have an x and a y for each corner, got an odd "
                    "number of values",
                )
        elif first < last:
            check(
                last - first == 1,
                f"{op}: instance {i} is run lengths and must have one piece, got {last - first}",
            )
            check(
                all(1 <= side <= _MAX_SOURCE for side in frame[:2])
                and all(1 <= side <= _MAX_TARGET for side in frame[4:]),
                f"{op}: frames[{i}] must have sides from 1 to {_MAX_SOURCE}, and from 1 to "
                f"{_MAX_TARGET} in the network's input",
            )
    count = len(instances) - 1
    for i, which in enumerate(index.tolist()):
        check(-1 <= which < count, f"{op}: index[{i}] is {which}, but there are {count} instances")


def _check_offsets(op: str, name: str, offsets: list[int], most: int, of: str) -> None:
    for i, (before, offset) in enumerate(pairwise([0, *offsets])):
        check(
            before <= offset <= most,
            f"{op}: {name} must increase from 0 to the {most} {of}, got {offset} at place {i}",
        )
