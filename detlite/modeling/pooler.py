"""Pooling regions of several images from several levels to one size.

Shapes: R regions, C channels, S the side of a pooled region, L levels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from yacs.config import CfgNode

from ..ops.pyramid import assign_levels, pyramid_roi_align, pyramid_roi_pool
from ..registry import Registry
from ..structures import boxes as box_ops
from .backbone import Backbone

# Pools regions [R, 5] of (batch index, x1, y1, x2, y2) in image pixels to S x S, each from the map
# [B, C, H_l, W_l] that fits its size: (maps, regions, S, 1 / stride of each map, sampling ratio).
PoolFunction = Callable[[Sequence[Tensor], Tensor, int, Sequence[float], int], Tensor]
POOLERS: Registry[PoolFunction] = Registry("pooler")


@POOLERS.register("ROIAlign")
def _align(
    features: Sequence[Tensor], rois: Tensor, size: int, scales: Sequence[float], sampling: int
) -> Tensor:
    return pyramid_roi_align(features, rois, size, scales, sampling, aligned=False)


@POOLERS.register("ROIAlignV2")
def _align_half_pixel(
    features: Sequence[Tensor], rois: Tensor, size: int, scales: Sequence[float], sampling: int
) -> Tensor:
    return pyramid_roi_align(features, rois, size, scales, sampling, aligned=True)


@POOLERS.register("ROIPool")
def _max_pool(
    features: Sequence[Tensor], rois: Tensor, size: int, scales: Sequence[float], sampling: int
) -> Tensor:
    return pyramid_roi_pool(features, rois, size, scales)


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
        if not self.inclusive:
            return self._pool(features, to_rois(boxes), self.scales)
        # The level follows from the whole box, the samples from the shorter one.
        levels = assign_levels(torch.cat(boxes), self.scales)
        rois = to_rois([box_ops.drop_last_pixel(b) for b in boxes])
        pooled, order = [], []
        for level, scale in enumerate(self.scales):
            index = torch.where(levels == level)[0]
            order.append(index)
            pooled.append(self._pool([features[level]], rois[index], [scale]))
        # Gathering by the inverse permutation is differentiable, scattering in place is not.
        return torch.cat(pooled)[torch.cat(order).argsort()]

    def _pool(self, features: Sequence[Tensor], rois: Tensor, scales: Sequence[float]) -> Tensor:
        levels = features[: len(scales)]
        return self.pool(levels, rois, self.resolution, scales, self.sampling_ratio)


def to_rois(boxes: list[Tensor]) -> Tensor:
    """Boxes of each image [R_i, 4] as regions [R, 5] that begin with the image's index."""
    index = torch.cat([b.new_full((len(b), 1), i) for i, b in enumerate(boxes)])
    return torch.cat([index, torch.cat(boxes)], dim=1)


def build_pooler(cfg: CfgNode, head: str, backbone: Backbone) -> Pooler:
    """The pooler of `head` ("ROI_BOX_HEAD", ...) for the levels of `backbone` that are pooled."""
    node = cfg.MODEL[head]
    pool = POOLERS.get(node.POOLER_TYPE, f"MODEL.{head}.POOLER_TYPE")
    scales = [1.0 / stride for stride in backbone.strides[: backbone.pooled]]
    return Pooler(
        pool,
        node.POOLER_RESOLUTION,
        scales,
        node.POOLER_SAMPLING_RATIO,
        inclusive=cfg.MODEL.INCLUSIVE_BOXES,
    )
