"""Crop ground-truth masks to boxes, and paste predicted masks into images."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from pycocotools import mask as rle_codec
from torch import Tensor
from torch.nn import functional as F

from detlite.structures.masks.editing import clip_ring
from detlite.structures.masks.packed import PackedMasks
from detlite.structures.masks.pasting import paste_probabilities
from detlite.structures.masks.rle import decode_frame

from .checks import FLOATING, check, check_tensors
from .dispatch import operator
from .roi_align import roi_align

# Cells around a box beyond which polygons are clipped: pycocotools walks edges point by point.
_MARGIN = 1 << 17


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
    """Rasterize the part of an instance's mask inside each box on M x M cells.

    The first four arguments are the fields of `detlite.structures.masks.packed.PackedMasks`: I
    instances of Q pieces (polygons, or the run lengths of one mask) with V numbers in total.

    Polygons are drawn exactly as by detectron2's `rasterize_polygons_within_box`: COCO's
    rasterization of their union. Corners more than 2^25 / 5 cells from the box are moved to that
    distance, NaN to its low side.

    Run lengths are pooled as RoIAlign pools their bitmap of the size of the network's input, on the
    CPU bit by bit: the average over each cell, with one sample per pixel, thresholded at 0.5. No
    gradient flows.

    Args:
        values, pieces, instances, frames: float64 `[V]`, int64 `[Q + 1]`, int64 `[I + 1]` and
            int64 `[I, 6]`, see `PackedMasks`. An instance without pieces is an empty mask.
        index: int64 `[R]`, the instance of each box; -1 for padding, an empty mask.
        boxes: `[R, 4]` of (x1, y1, x2, y2) in pixels of the network's input; computes in float32.
        resolution: M, from 1 to 256.
        soft: keep the averages of run lengths, without threshold and without half a pixel of
            offset (torchvision). Polygons cannot be soft.

    Returns:
        float32 `[R, M, M]` of 0 and 1; if `soft`, from 0 to 1.

    Raises:
        RuntimeError: an argument is invalid; the message names it. On CUDA the contents of tensors
            are not checked first: offsets are clamped, and the kernel aborts with an error at an
            index outside the instances, or at soft polygons.
    """
    boxes = boxes.detach()
    return torch.ops.detlite.crop_masks(
        values, pieces, instances, frames, index, boxes, resolution, soft
    )


def paste_masks(
    probs: Tensor, boxes: Tensor, size: tuple[int, int], threshold: float = 0.5
) -> list[dict[str, Any]]:
    """Resample masks into their boxes, threshold them and encode them as COCO RLEs.

    The pixels are the same as with `structures.masks.pasting.paste_probabilities`, but no image is
    stored: work and memory grow with the boxes.

    Args:
        probs: `[N, M, M]` probabilities, any floating type; computes in float32.
        boxes: `[N, 4]` of (x1, y1, x2, y2) in pixels of the image, see
            `structures.masks.pasting.paste_boxes`. The mask of a box with a NaN or infinite
            coordinate is empty.
        size: (height, width) of the image.
        threshold: above 0; pixels with at least this probability belong to the mask.

    Returns:
        The RLE of each mask, `{"size": [height, width], "counts": str}`, ready for json and
        pycocotools.
    """
    data, ends = torch.ops.detlite.paste_masks_rle(probs.cpu(), boxes.cpu(), *size, threshold)
    text = data.numpy().tobytes().decode("ascii")
    offsets = pairwise([0, *ends.tolist()])
    return [{"size": list(size), "counts": text[begin:end]} for begin, end in offsets]


# ---- The operators, and their fallbacks: pycocotools, NumPy and RoIAlign, one box at a time


def _crop_shape(*arguments: Any) -> Tensor:
    boxes, resolution, _soft = arguments[-3:]
    return boxes.new_empty((boxes.shape[0], resolution, resolution), dtype=torch.float32)


def _paste_shapes(probs: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    length = torch.library.get_ctx().new_dynamic_size()
    return (
        probs.new_empty((length,), dtype=torch.uint8),
        probs.new_empty((probs.shape[0],), dtype=torch.int64),
    )


@operator("crop_masks", "cpu", _crop_shape)
def _crop_masks(
    values: Tensor,
    pieces: Tensor,
    instances: Tensor,
    frames: Tensor,
    index: Tensor,
    boxes: Tensor,
    resolution: int,
    soft: bool,
) -> Tensor:
    op = "crop_masks"
    check_tensors(
        op,
        values=(values, ["V"], torch.float64),
        pieces=(pieces, ["Q + 1"], torch.int64),
        instances=(instances, ["I + 1"], torch.int64),
        frames=(frames, [len(instances) - 1, 6], torch.int64),
        index=(index, ["R"], torch.int64),
        boxes=(boxes, [len(index), 4], FLOATING),
    )
    check(1 <= resolution <= 256, f"{op}: resolution must be from 1 to 256, got {resolution}")
    wrong = index[(index < -1) | (index >= len(frames))].tolist()
    check(not wrong, f"{op}: index is {wrong[:1]}, but there are {len(frames)} instances")
    boxes = boxes.float()
    crops = boxes.new_zeros(len(boxes), resolution, resolution)
    packed = PackedMasks(values, pieces, instances, frames).pieces_and_frames()
    for instance, (parts, frame) in enumerate(packed):
        rows = (index == instance).nonzero()[:, 0]
        if not parts or not len(rows):
            continue
        if frame[0] == 0:
            polygons = f"{op}: instance {instance} is polygons, and soft masks need run lengths"
            check(not soft, polygons)
            drawn = [_draw_polygons(parts, box, resolution) for box in boxes[rows].numpy()]
            crops[rows] = torch.from_numpy(np.stack(drawn)).float()
            continue
        bitmap = torch.from_numpy(np.ascontiguousarray(decode_frame(parts[0], frame))).float()
        rois = F.pad(boxes[rows], (1, 0))
        pooled = roi_align(bitmap[None, None], rois, resolution, 1.0, 0, aligned=not soft)[:, 0]
        crops[rows] = pooled if soft else (pooled >= 0.5).float()
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


@operator("paste_masks_rle", "cpu", _paste_shapes)
def _paste_masks_rle(
    probs: Tensor, boxes: Tensor, height: int, width: int, threshold: float
) -> tuple[Tensor, Tensor]:
    op, shape = "paste_masks_rle", [len(probs), 4]
    check_tensors(op, probs=(probs, [*"NMM"], FLOATING), boxes=(boxes, shape, FLOATING))
    check(min(probs.shape[1:]) >= 1, f"{op}: masks must have at least one cell")
    check(min(height, width) >= 0, f"{op}: height and width must be zero or more")
    check(threshold > 0, f"{op}: threshold must be more than 0, got {threshold}")
    texts = []
    for prob, box in zip(probs, boxes.float(), strict=True):
        (pasted,) = paste_probabilities(prob[None], box[None], (height, width))
        bitmap = np.asfortranarray((pasted >= threshold).numpy(), np.uint8)
        texts.append(rle_codec.encode(bitmap)["counts"])
    data = np.frombuffer(bytearray().join(texts), np.uint8)
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    return torch.from_numpy(data), torch.from_numpy(ends)
