"""Keypoints from heat maps, enlarged by torch's bicubic interpolation one at a time."""

import torch
from torch import Tensor
from torch.nn import functional as F

from .checks import FLOATING, check, check_tensors

_MAX_CELLS = 1 << 10
_MAX_PIXELS = 1 << 12


def heatmap_peaks(maps: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    op, shape = "heatmap_peaks", [len(maps), 4]
    check_tensors(op, maps=(maps, [*"RNMM"], FLOATING), boxes=(boxes, shape, FLOATING))
    cells = list(maps.shape[2:])
    check(
        all(1 <= side <= _MAX_CELLS for side in cells),
        f"{op}: maps must have sides from 1 to {_MAX_CELLS}, got {cells}",
    )
    maps, boxes = maps.float(), boxes.float()
    low = boxes[:, :2]
    sides = boxes[:, 2:] - low
    sides = torch.where(sides < 1, 1, sides)
    pixels = torch.where(sides.isfinite(), sides.ceil().clamp(max=_MAX_PIXELS), 1)
    finite = maps.isfinite().flatten(2).all(dim=2)
    scores, index = torch.zeros_like(finite, dtype=maps.dtype), torch.zeros_like(finite).long()
    for box, (width, height) in enumerate(pixels.long().tolist()):
        for point, one in enumerate(maps[box]):
            enlarged = F.interpolate(one[None, None], size=(height, width), mode="bicubic")
            scores[box, point], index[box, point] = enlarged.flatten().max(dim=0)
    scores, index = torch.where(finite, scores, torch.nan), torch.where(finite, index, 0)
    width = pixels[:, :1].long()
    pixel = torch.stack([index % width, index // width], dim=2)
    xy = low[:, None] + (pixel + 0.5) * (sides / pixels)[:, None]
    return torch.cat([xy, torch.ones_like(xy[..., :1])], dim=2), scores
