"""Pooling regions of several images from several levels to one size.

Shapes: R regions, C channels, S the side of a pooled region, L levels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from yacs.config import CfgNode

from ..ops.roi_align import roi_align
from ..ops.roi_pool import roi_pool
from ..registry import Registry
from ..structures import boxes as box_ops

# Pools regions [R, 5] of (batch index, x1, y1, x2, y2) in image pixels from one map [B, C, H, W].
PoolFunction = Callable[[Tensor, Tensor, int, float, int], Tensor]
POOLERS: Registry[PoolFunction] = Registry("pooler")

# FPN (https://arxiv.org/abs/1612.03144), eq. 1: a region as large as an ImageNet crop (224
# pixels) belongs to the map of stride 16.
_CANONICAL_SIZE = 224.0
_CANONICAL_LEVEL = 4


@POOLERS.register("ROIAlign")
def _align(feature: Tensor, rois: Tensor, size: int, scale: float, sampling: int) -> Tensor:
    return roi_align(feature, rois, (size, size), scale, sampling, aligned=False)


@POOLERS.register("ROIAlignV2")
def _align_half_pixel(
    feature: Tensor, rois: Tensor, size: int, scale: float, sampling: int
) -> Tensor:
    return roi_align(feature, rois, (size, size), scale, sampling, aligned=True)


@POOLERS.register("ROIPool")
def _max_pool(feature: Tensor, rois: Tensor, size: int, scale: float, sampling: int) -> Tensor:
    return roi_pool(feature, rois, (size, size), scale)


class Pooler(nn.Module):
    """Pools each region from the level that fits its size.

    Args:
        pool: one of POOLERS.
        resolution: S.
        scales: 1 / stride of each level, finest first, each half the one before.
        sampling_ratio: samples per bin side; 0: as many as the region's size asks for.
        inclusive: pool regions one pixel shorter at x2 and y2, which then count the last pixel.
    """

    def __init__(
        self,
        pool: PoolFunction,
        resolution: int,
        scales: Sequence[float],
        sampling_ratio: int,
        inclusive: bool = False,
    ) -> None:
        super().__init__()
        self.pool = pool
        self.resolution = resolution
        self.scales = tuple(scales)
        self.sampling_ratio = sampling_ratio
        self.inclusive = inclusive

    def forward(self, features: list[Tensor], boxes: list[Tensor]) -> Tensor:
        """Pools the boxes of a batch.

        Args:
            features: at least L levels [B, C, H_l, W_l]; further ones are not used.
            boxes: for each image xyxy [R_i, 4] in image pixels.

        Returns:
            [R, C, S, S], the regions of all images in order.
        """
        rois = to_rois([box_ops.drop_last_pixel(b) for b in boxes] if self.inclusive else boxes)
        args = (self.resolution, self.scales[0], self.sampling_ratio)
        if len(self.scales) == 1:
            return self.pool(features[0], rois, *args)
        levels = assign_levels(torch.cat(boxes), self.scales)
        pooled, order = [], []
        for level, scale in enumerate(self.scales):
            index = torch.where(levels == level)[0]
            order.append(index)
            pooled.append(
                self.pool(features[level], rois[index], self.resolution, scale, self.sampling_ratio)
            )
        # Gathering by the inverse permutation is differentiable, scattering in place is not.
        return torch.cat(pooled)[torch.cat(order).argsort()]


def to_rois(boxes: list[Tensor]) -> Tensor:
    """Boxes of each image [R_i, 4] as regions [R, 5] that begin with the image's index."""
    index = torch.cat([b.new_full((len(b), 1), i) for i, b in enumerate(boxes)])
    return torch.cat([index, torch.cat(boxes)], dim=1)


def assign_levels(boxes: Tensor, scales: Sequence[float]) -> Tensor:
    """The level (0 is the finest) of each box [R, 4]: int64 [R]."""
    finest = -torch.tensor(scales[0]).log2()
    coarsest = finest + len(scales) - 1
    side = box_ops.area(boxes).sqrt()
    level = (_CANONICAL_LEVEL + (side / _CANONICAL_SIZE + 1e-6).log2()).floor()
    return (level.clamp(float(finest), float(coarsest)) - float(finest)).long()


def build_pooler(cfg: CfgNode, head: str, strides: Sequence[int]) -> Pooler:
    """The pooler of `head` ("ROI_BOX_HEAD", ...) for maps of the given strides."""
    node = cfg.MODEL[head]
    pool = POOLERS.get(node.POOLER_TYPE, f"MODEL.{head}.POOLER_TYPE")
    scales = [1.0 / stride for stride in strides]
    return Pooler(
        pool,
        node.POOLER_RESOLUTION,
        scales,
        node.POOLER_SAMPLING_RATIO,
        inclusive=cfg.MODEL.INCLUSIVE_BOXES,
    )
