"""Pooling RoIs of several images from several levels to one size.

Shapes: R RoIs, C channels, S the side of a pooled RoI, L levels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from yacs.config import CfgNode

from detlite.conventions import Convention, convention_of
from detlite.modeling.backbone import Backbone
from detlite.ops import assign_levels, pyramid_roi_align, pyramid_roi_pool
from detlite.registry import Registry
from detlite.structures import boxes as box_ops

# Pools RoIs [R, 5] of (image index, x1, y1, x2, y2) to S x S, each from the map [B, C, H_l, W_l] of
# its level: (maps, rois, S, 1 / stride of each map, sampling ratio, levels=int64 [R]).
PoolFunction = Callable[..., Tensor]
POOLERS: Registry[PoolFunction] = Registry("pooler")
POOLERS.register("ROIAlign")(partial(pyramid_roi_align, aligned=False))
POOLERS.register("ROIAlignV2")(partial(pyramid_roi_align, aligned=True))


@POOLERS.register("ROIPool")
def _max_pool(
    maps: Sequence[Tensor],
    rois: Tensor,
    size: int,
    scales: Sequence[float],
    _sampling: int,
    levels: Tensor,
) -> Tensor:
    return pyramid_roi_pool(maps, rois, size, scales, levels=levels)


class Pooler(nn.Module):
    """Pools each RoI from the level that fits its size.

    Args:
        pool: one of POOLERS.
        resolution: S.
        strides: of each level in pixels of the network's input, finest first, each twice the one
            before.
        sampling_ratio: samples per bin side; 0: as many as the RoI's size asks for.
        convention: what part of a box is pooled.
    """

    def __init__(
        self,
        pool: PoolFunction,
        resolution: int,
        strides: Sequence[int],
        sampling_ratio: int,
        convention: Convention,
    ) -> None:
        super().__init__()
        self.pool = pool
        self.resolution = resolution
        self.scales = tuple(1.0 / stride for stride in strides)
        self.sampling_ratio = sampling_ratio
        self.convention = convention

    def forward(self, features: list[Tensor], rois: Tensor) -> Tensor:
        """Pools the RoIs of a batch.

        Args:
            features: at least L levels [B, C, H_l, W_l]; further ones are not used.
            rois: [R, 5] of (image index, x1, y1, x2, y2) in pixels of the network's input; the
                index -1 is padding.

        Returns:
            [R, C, S, S], zeros at padding.
        """
        # The level follows from the whole box, also where a shorter one is pooled.
        levels = assign_levels(rois[:, 1:], self.scales)
        pooled = torch.cat(
            [rois[:, :1], box_ops.pooled_region(rois[:, 1:], self.convention)], dim=1
        )
        maps = features[: len(self.scales)]
        size, scales, sampling = self.resolution, self.scales, self.sampling_ratio
        return self.pool(maps, pooled, size, scales, sampling, levels=levels)


def build_pooler(cfg: CfgNode, head: str, backbone: Backbone) -> Pooler:
    """The pooler of `head` ("ROI_BOX_HEAD", ...) for the levels of `backbone` that are pooled."""
    node = cfg.MODEL[head]
    return Pooler(
        POOLERS.get(node.POOLER_TYPE, f"MODEL.{head}.POOLER_TYPE"),
        node.POOLER_RESOLUTION,
        backbone.strides[: backbone.pooled],
        node.POOLER_SAMPLING_RATIO,
        convention_of(cfg),
    )
