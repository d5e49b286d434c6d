"""Paste the M x M probabilities of a mask head into an image."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from detlite.conventions import Convention
from detlite.structures import boxes as box_ops


def paste_probabilities(probs: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Resample masks `[N, M, M]` into boxes `[N, 4]`, see `paste_boxes`, of an image (H, W).

    The M x M cells tile the box. A pixel takes the value at its center by bilinear interpolation
    between cell centers, with zeros around the mask. The mask of a box with a NaN or infinite
    coordinate is 0. Returns float32 `[N, H, W]`.
    """
    padded = F.pad(probs.float(), (2, 2, 2, 2))
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return _paste(padded, boxes, (0, size[1]), (0, size[0]))
    pasted = torch.zeros((len(probs), *size), dtype=torch.float32, device=probs.device)
    for number, (x1, y1, x2, y2) in enumerate(boxes.tolist()):
        if all(map(math.isfinite, (x1, y1, x2, y2))):
            columns = _covered_pixels(x1, x2, probs.shape[2], size[1])
            rows = _covered_pixels(y1, y2, probs.shape[1], size[0])
            one = slice(number, number + 1)
            window = _paste(padded[one], boxes[one], columns, rows)
            pasted[number, slice(*rows), slice(*columns)] = window[0]
    return pasted


def _paste(
    padded: Tensor, boxes: Tensor, columns: tuple[int, int], rows: tuple[int, int]
) -> Tensor:
    """Paste masks that are padded with two rings of zeros into a window, without reading values.

    Separable: along the rows, then between them. The kernel `paste_masks_rle` does the same
    operations in the same order, so that both round alike.
    """
    finite = boxes.isfinite().all(dim=1)
    boxes = torch.where(finite[:, None], boxes, 0)
    for axis, window in ((0, columns), (1, rows)):
        low, high = boxes[:, axis, None], boxes[:, axis + 2, None]
        cells = padded.shape[2] - 4
        cell = ((high.double() - low.double()).clamp(min=1e-6) / cells).float()
        centers = torch.arange(*window, dtype=torch.float32, device=boxes.device) + 0.5
        position = (centers - low) / cell - 0.5  # [N, pixels]
        index = position.floor()
        weight = (position - index)[:, None]
        index = index.clamp(-2, cells).long()[:, None] + 2
        index = index.expand(-1, padded.shape[1], -1)
        padded = padded.gather(2, index) * (1 - weight) + padded.gather(2, index + 1) * weight
        padded = padded.transpose(1, 2)  # the rows after the columns
    return padded * finite[:, None, None]


def _covered_pixels(low: float, high: float, cells: int, limit: int) -> tuple[int, int]:
    """Return the first pixel of an axis that a mask covers, and the one after the last."""
    cell = max(high - low, 1e-6) / cells
    # The mask reaches half a cell beyond the box: one cell from the outermost cell center.
    start = min(max(int(low - 0.5 * cell - 0.5), 0), limit)
    return start, min(max(int(high + 0.5 * cell + 0.5) + 1, start), limit)


def paste_boxes(boxes: Tensor, resolution: int, convention: Convention) -> Tensor:
    """Return the boxes `[N, 4]` that masks of M x M cells fill, by the rules of a framework.

    With `mask_paste` "whole-pixels", torchvision and maskrcnn-benchmark surround a mask with a
    ring of zeros and truncate the enlarged box to whole pixels, the last pixel included.
    """
    boxes = box_ops.pooled_region(boxes, convention)
    if convention.mask_paste != "whole-pixels":
        return boxes
    low, high = boxes[:, :2], boxes[:, 2:]
    center, half = (low + high) / 2, (high - low) / 2
    enlarged = half * ((resolution + 2) / resolution)
    low, high = (center - enlarged).trunc(), (center + enlarged).trunc() + 1
    side, cells = (high - low).clamp(min=1), resolution + 2
    return torch.cat([low + side / cells, low + side * ((cells - 1) / cells)], dim=1)
