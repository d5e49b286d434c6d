"""Crop ground-truth masks to boxes, and paste predicted masks into images."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .dispatch import declare


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


def _crop_shape(*arguments: Any) -> Tensor:
    boxes, resolution, _soft = arguments[-3:]
    return boxes.new_empty((boxes.shape[0], resolution, resolution), dtype=torch.float32)


def _paste_shapes(probs: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    length = torch.library.get_ctx().new_dynamic_size()
    return (
        probs.new_empty((length,), dtype=torch.uint8),
        probs.new_empty((probs.shape[0],), dtype=torch.int64),
    )


declare("crop_masks", "masks.crop_masks", "cpu", _crop_shape)
declare("paste_masks_rle", "masks.paste_masks_rle", "cpu", _paste_shapes)
