"""Maps over boxes: masks cropped for training or pasted into images, keypoints of heat maps."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor


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
    """The part of an instance's mask inside each box, on M x M cells.

    The first four arguments are the fields of `detlite.structures.masks.packed.PackedMasks`, which
    holds I instances of Q pieces (polygons, or run lengths of one mask) with V numbers together.

    Polygons give, to the last cell, what detectron2's `rasterize_polygons_within_box` gives: COCO's
    rasterisation of their union on the box's cells. Corners more than 2^25 / 5 cells from the
    box's corner are taken as that far out, NaN as far out on the low side.

    Run lengths give what RoIAlign of the bitmap in the size of the network's input gives on the
    same device, on the CPU to the last bit: the average over each cell of the box, with as many
    samples as the cell has pixels, thresholded at one half. No gradient flows.

    Args:
        values, pieces, instances, frames: float64 `[V]`, int64 `[Q + 1]`, int64 `[I + 1]` and
            int64 `[I, 6]`, as `PackedMasks` describes them. An instance with no pieces is an empty
            mask.
        index: int64 `[R]`, the instance for each box; -1 for padding, an empty mask.
        boxes: `[R, 4]` of (x1, y1, x2, y2) in pixels of the network's input, anywhere; computed
            with in float32.
        resolution: M, from 1 to 256.
        soft: for run lengths alone: neither threshold the average nor shift it by half a pixel
            (torchvision).

    Returns:
        float32 `[R, M, M]` of 0 and 1; if `soft`, of 0 to 1.

    Raises:
        RuntimeError: an argument is wrong; the message names it. On CUDA the contents of tensors
            are not read for that: offsets are clamped, and an index outside the instances, or
            polygons for soft masks, end the kernel with an error.
    """
    return torch.ops.detlite.crop_masks(
        values, pieces, instances, frames, index, boxes.detach(), resolution, soft
    )


def paste_masks(
    probs: Tensor, boxes: Tensor, size: tuple[int, int], threshold: float = 0.5
) -> list[dict[str, Any]]:
    """Resamples masks into their boxes, thresholds them and encodes what is left.

    The masks are those of `structures.masks.formats.paste_probabilities`, to the last pixel, but
    no image is ever held: the work and the memory follow the boxes.

    Args:
        probs: `Tensor[N, M, M]`, probabilities of any floating type, computed with in float32.
        boxes: `Tensor[N, 4]` of (x1, y1, x2, y2) in pixels of the image, anywhere; a box with a
            coordinate that is NaN or infinite leaves an empty mask.
        size: (height, width) of the image.
        threshold: above 0; pixels of at least this probability belong to the mask.

    Returns:
        For each mask its RLE in COCO's form, `{"size": [height, width], "counts": str}`, which
        pycocotools decodes and json takes.

    Raises:
        RuntimeError: an argument is wrong; the message names it.
    """
    data, ends = torch.ops.detlite.paste_masks_rle(probs.cpu(), boxes.cpu(), *size, threshold)
    text = data.numpy().tobytes().decode("ascii")
    places = pairwise([0, *ends.tolist()])
    return [{"size": list(size), "counts": text[begin:end]} for begin, end in places]


def heatmap_peaks(maps: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """The highest point of each map, enlarged to its box by bicubic interpolation.

    The box is cut into pixels, as many as it is long and wide, rounded up, and at least one; the
    highest pixel's centre is the keypoint (Mask R-CNN, section 5). The interpolation is torch's
    `interpolate(mode="bicubic", align_corners=False)` up to rounding. Of equal pixels the first
    one wins, row by row. Shapes are fixed, no enlarged map is held, and no gradient flows.

    A side of more than 4096 pixels is cut into 4096. A side that is NaN or infinite is one pixel,
    and the keypoint there is NaN or infinite. A map with a value that is NaN or infinite has the
    score NaN, and its keypoint is the first pixel.

    Args:
        maps: `[R, N, M, M]` logits of any floating type, computed with in float32; M up to 1024.
        boxes: `[R, 4]` of (x1, y1, x2, y2).

    Returns:
        Keypoints float32 `[R, N, 3]` of (x, y, visibility 1), and the logits float32 `[R, N]`
        there.

    Raises:
        RuntimeError: a shape, type or device is wrong; the message names the argument.
    """
    return torch.ops.detlite.heatmap_peaks(maps.detach(), boxes.detach())


@torch.library.register_fake("detlite::crop_masks")
def _(*arguments: Any) -> Tensor:
    boxes, resolution, _soft = arguments[-3:]
    return boxes.new_empty((boxes.shape[0], resolution, resolution), dtype=torch.float32)


@torch.library.register_fake("detlite::paste_masks_rle")
def _(probs: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    length = torch.library.get_ctx().new_dynamic_size()
    return (
        probs.new_empty((length,), dtype=torch.uint8),
        probs.new_empty((probs.shape[0],), dtype=torch.int64),
    )


@torch.library.register_fake("detlite::heatmap_peaks")
def _(maps: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    count, points = maps.shape[:2]
    return (
        maps.new_empty((count, points, 3), dtype=torch.float32),
        maps.new_empty((count, points), dtype=torch.float32),
    )
