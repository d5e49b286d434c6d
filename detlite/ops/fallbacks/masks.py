"""Cropping and pasting of masks by pycocotools, NumPy and RoIAlign, one box at a time."""

from collections.abc import Sequence

import numpy as np
import torch
from pycocotools import mask as rle_codec
from torch import Tensor
from torch.nn import functional as F

from detlite.ops.roi_align import roi_align
from detlite.structures.masks.editing import clip_ring
from detlite.structures.masks.packed import PackedMasks
from detlite.structures.masks.pasting import paste_probabilities
from detlite.structures.masks.rle import decode_frame

from .checks import FLOATING, check, check_tensors

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


def paste_masks_rle(
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
